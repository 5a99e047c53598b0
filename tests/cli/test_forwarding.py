"""`otel-rollout forward`: beside another forwarder, and as a service."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout import rollout_trace_attr, settings, settings_reader
from otel_rollout.account.ledger_reader import read_ledger
from otel_rollout.cli.forwarding import ForwardingService
from otel_rollout.record.launch import launcher
from otel_rollout.spool import layout
from tests.cli.command import COMMAND, run
from tests.forwarder.test_delivery import delivered, node_directory, record
from tests.forwarders import end_forwarders
from tests.waiting import wait_for


@pytest.fixture
def pending(fresh_process: None, test_exporters: None, target: Path, tmp_path: Path) -> Path:
    """Return a node directory with 4 undelivered spans and a forwarder at work."""
    target.with_name(target.name + ".fault").write_text("unavailable")
    otel_rollout.configure({"test-faulty": {}}, forwarder_linger=60)
    record(3)
    otel_rollout.shutdown(0)
    node_dir = node_directory(tmp_path)
    wait_for(lambda: launcher.forwarder_runs(node_dir), what="a forwarder")
    return node_dir


@contextlib.contextmanager
def forwarding() -> Iterator[subprocess.Popen[str]]:
    """Run `otel-rollout forward` beside another forwarder; yield once it waits."""
    command = [*COMMAND, "forward"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert "Another forwarder is at work on" in process.stdout.readline()
        yield process


def end_of(process: subprocess.Popen[str]) -> str:
    """Return the rest of the output.

    ``communicate`` would miss lines in the reader's buffer.
    """
    assert process.stdout is not None
    output = process.stdout.read()
    process.wait(60)
    return output


def test_forward_waits_for_the_forwarder_at_work(pending: Path, target: Path) -> None:
    """The command returns 0 when the other forwarder has delivered all spans."""
    with forwarding() as process:
        assert process.poll() is None
        target.with_name(target.name + ".fault").unlink()
        output = end_of(process)
    assert process.returncode == 0, output
    assert "4 delivered to test-faulty, 0 pending" in output


def test_forward_takes_over_from_a_forwarder_that_is_killed(pending: Path, target: Path) -> None:
    """The command delivers the spans that a killed forwarder has left."""
    with forwarding() as process:
        end_forwarders(pending)
        target.with_name(target.name + ".fault").unlink()
        output = end_of(process)
    assert process.returncode == 0, output
    assert set(delivered(target).values()) == {1}


@pytest.mark.parametrize("names_another", ["target", "exporter"])
def test_forward_takes_over_from_a_forwarder_that_waits_for_a_wrong_target(
    pending: Path, target: Path, monkeypatch: pytest.MonkeyPatch, names_another: str
) -> None:
    """A corrected address, or another exporter, gets the spans of an ended run without a wait."""
    wait_for(lambda: read_ledger(pending).failures, what="a failure")
    right = target.with_name("right")
    monkeypatch.setenv("OTEL_TEST_FILE", str(right))
    exporter = {"target": "test-faulty", "exporter": "test-file"}[names_another]
    output = run("forward", "--to", exporter)
    assert f"taking over {pending} from a forwarder whose target does not answer" in output
    assert f"4 delivered to {exporter}, 0 pending" in output
    assert sorted(delivered(right).values()) == [1] * 4


def test_forward_leaves_a_target_that_only_the_code_names_to_the_forwarder(
    pending: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the variable of the target, the command would deliver to a default one; so it waits."""
    wait_for(lambda: read_ledger(pending).failures, what="a failure")
    monkeypatch.delenv("OTEL_TEST_FILE")
    with forwarding() as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("4 spans wait on disk for test-faulty: ")
        process.send_signal(signal.SIGINT)
        assert "taking over" not in end_of(process)


def test_forward_returns_1_beside_a_refused_forwarder(
    fresh_process: None, test_exporters: None, target: Path, tmp_path: Path
) -> None:
    """The command does not wait if a person has to act first."""
    target.with_name(target.name + ".fault").write_text("refused")
    otel_rollout.configure({"test-faulty": {}})
    record(3)
    with rollout_trace_attr():  # a forwarder stays while a process records
        wait_for(lambda: otel_rollout.status().exporters["test-faulty"].problem, what="a refusal")
        with forwarding() as process:
            output = end_of(process)
    assert process.returncode == 1
    assert "as the test wishes" in output


def test_interrupted_forward_says_what_waits_and_why(pending: Path) -> None:
    """The last line names the target, the number of spans and the target's error."""
    with forwarding() as process:
        process.send_signal(signal.SIGINT)
        last = end_of(process).splitlines()
    assert any(line.startswith("4 spans wait on disk for test-faulty: ") for line in last), last
    assert "as the test wishes" in "".join(last)


@pytest.fixture
def service(test_exporters: None, target: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start `otel-rollout forward --watch` before anything is recorded."""
    process = subprocess.Popen(
        [*COMMAND, "forward", "--watch", "--to", "test-file"], stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()


def test_service_forwards_runs_that_appear_later(
    service: subprocess.Popen[str], archived: Path, target: Path, tmp_path: Path
) -> None:
    """A run copied into the spool is delivered.

    SIGTERM ends the service with a report.
    """
    copied = tmp_path / "spool" / "of another machine" / "node"
    copied.mkdir(parents=True)
    for path in [archived / layout.MANIFEST, *(archived / layout.ARCHIVE).iterdir()]:
        shutil.copy(path, copied)
    for path in list(copied.glob("*.zst")):
        subprocess.run(["zstd", "-d", "-q", "--rm", "--long=27", path], check=True)
    wait_for(lambda: sum(delivered(target).values()) == 30, what="delivery")
    service.send_signal(signal.SIGTERM)
    output, _ = service.communicate(timeout=60)
    assert service.returncode == 0
    assert "30 delivered to test-file, 0 pending" in output


def test_stopped_service_starts_no_delivery(test_exporters: None, target: Path, tmp_path: Path) -> None:
    """A stopped service starts no delivery, and waits for no span nobody delivers."""
    for run_id in ("one", "two"):
        node_dir = layout.node_directory(tmp_path / "spool", run_id, "")
        layout.create_private(node_dir, tmp_path / "spool")
        layout.write_manifest(node_dir, layout.Manifest(run_id, "project", ("test-file",)))
        (node_dir / layout.SegmentName("1-0123456789abcdef", 1).file).write_text("{}\n")
    configured, _ = settings_reader.from_environment({"OTEL_TRACES_EXPORTER": "test-file"})
    stop = threading.Event()

    def settings_of(node_dir: Path) -> settings.Settings:
        stop.set()  # during the service's scan
        return configured

    service = ForwardingService(tmp_path / "spool", settings_of)
    service.run(stop)
    reports = service.finish(3600)  # it would wait for an hour
    assert [report.exporters["test-file"].pending for report in reports] == [1, 1]
    assert list((tmp_path / "spool").rglob("forwarder.lock")) == []
