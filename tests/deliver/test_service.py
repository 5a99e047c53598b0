"""Forwarding by hand: replay of files, and forwarding as a service."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout import spool
from otel_rollout.deliver import launch
from tests.deliver.test_delivery import delivered, node_directory, record
from tests.waiting import wait_for

COMMAND = [sys.executable, "-c", "from otel_rollout.cli import app; app()"]
ON_A_TERMINAL = [  # what a shell starts in the background ignores Ctrl-C, and so do its children
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from otel_rollout.cli import app; app()",
]


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "elsewhere"))
    return tmp_path / "elsewhere"


@pytest.fixture
def kept(fresh_process: None, test_exporters: None, tmp_path: Path) -> Path:
    """The node directory of a finished run with an archive of 31 spans in several segments."""
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "first")}}, segment_bytes=5000)
    for _ in range(3):
        record(9)
        otel_rollout.runtime.current().writer.flush(10)  # type: ignore[attr-defined]
    otel_rollout.shutdown(30)
    node_dir = node_directory(tmp_path)
    wait_for(lambda: not launch.forwarder_runs(node_dir), what="the forwarder's end")
    return node_dir


def run(*arguments: object, code: int = 0) -> str:
    ran = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def test_replay_of_a_kept_run(kept: Path, target: Path, tmp_path: Path) -> None:
    """The archive of a run is delivered again, all of it, and nothing of the replay stays behind."""
    assert "test-file: 30 lines delivered, 0 rejected, 0 pending" in run("replay", kept, "--to", "test-file")
    assert sum(delivered(target).values()) == 30
    assert delivered(target) == delivered(tmp_path / "first")
    assert spool.node_directories(tmp_path / "spool") == [kept]


def test_replay_of_lines_of_other_tools(target: Path, test_exporters: None, tmp_path: Path) -> None:
    """Any file of OTLP JSON Lines will do, several spans in a line, the last without an end."""
    span = '{"traceId":"%032x","spanId":"%016x","name":"s","startTimeUnixNano":"1","endTimeUnixNano":"2"}'
    pair = ",".join(span % (7, n) for n in (1, 2))
    line = '{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}]}'
    (tmp_path / "traces.json").write_text(line % pair + "\n" + line % (span % (7, 3)))
    assert "2 lines delivered" in run("replay", tmp_path / "traces.json", "--to", "test-file")
    assert {span_id for span_id, _ in delivered(target)} == {f"{n:016x}" for n in (1, 2, 3)}


def test_replay_of_what_was_set_aside(
    fresh_process: None, test_exporters: None, target: Path, tmp_path: Path
) -> None:
    """Spans that one target refused are delivered to it, or another, once it takes them."""
    otel_rollout.configure({"test-faulty": {"path": str(tmp_path / "first")}})
    record(3)
    record(1, name="poison")
    otel_rollout.shutdown(30)
    rejected = node_directory(tmp_path) / "rejected.test-faulty.jsonl"
    assert "1 lines delivered, 0 rejected" in run("replay", rejected, "--to", "test-file")
    assert [name for _, name in delivered(target)] == ["poison"]


def test_what_cannot_be_replayed_is_said(target: Path, test_exporters: None, tmp_path: Path) -> None:
    """A file that is missing, a directory without segments, nobody to deliver, lines that are none.

    Only the last, which are set aside, leave a run behind.
    """
    assert "No such file" in run("replay", tmp_path / "missing", "--to", "test-file", code=2)
    (tmp_path / "empty").mkdir()
    assert "holds no segments" in run("replay", tmp_path / "empty", "--to", "test-file", code=2)
    (tmp_path / "text").write_text("hello\n")
    assert "no span exporter is called 'nobody'" in run("replay", tmp_path / "text", "--to", "nobody", code=2)
    assert "Nothing was recorded" in run("status", code=1)
    assert "0 lines delivered, 1 rejected" in run("replay", tmp_path / "text", "--to", "test-file", code=1)
    assert "replay-" in run("status")


@pytest.fixture
def service(test_exporters: None, target: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`otel-rollout forward --watch`, started before anything was recorded."""
    process = subprocess.Popen(
        [*COMMAND, "forward", "--watch", "--to", "test-file"], stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()


def test_a_service_forwards_every_run_that_comes(
    service: subprocess.Popen[str], kept: Path, target: Path, tmp_path: Path
) -> None:
    """A spool copied from another machine is delivered; SIGTERM ends the service, with an account."""
    copied = tmp_path / "spool" / "of another machine" / "node"
    copied.mkdir(parents=True)
    for path in [kept / spool.MANIFEST, *(kept / spool.ARCHIVE).iterdir()]:
        shutil.copy(path, copied)
    for path in list(copied.glob("*.zst")):
        subprocess.run(["zstd", "-d", "-q", "--rm", "--long=27", path], check=True)
    wait_for(lambda: sum(delivered(target).values()) == 30, what="delivery")
    service.send_signal(signal.SIGTERM)
    said, _ = service.communicate(timeout=60)
    assert service.returncode == 0
    assert "30 delivered to test-file, 0 pending" in said


def test_status_is_watched_on_a_terminal(kept: Path) -> None:
    """`status --watch` shows the account again and again, and Ctrl-C ends it quietly."""
    ours, theirs = pty.openpty()
    command = [*ON_A_TERMINAL, "status", "--watch"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, close_fds=True) as process:
        os.close(theirs)
        seen = ""
        while seen.count("recorded = delivered") < 2:
            seen += os.read(ours, 4096).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    os.close(ours)


def test_how_far_delivery_is_shows_on_a_terminal(kept: Path, target: Path) -> None:
    """`replay` and `forward` show how much is delivered, how fast, and for how long they still need."""
    fault = Path(f"{target}.fault")
    fault.write_text("unavailable")
    ours, theirs = pty.openpty()
    command = [*COMMAND, "replay", kept, "--to", "test-faulty"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, close_fds=True) as process:
        os.close(theirs)
        seen = ""
        while not re.search(r" 0/30\S* 0 spans/s \S*-:--:--", seen):
            seen += os.read(ours, 4096).decode(errors="replace")
        fault.unlink()
        with contextlib.suppress(OSError):  # nobody is there any more
            while os.read(ours, 4096):
                pass
        assert process.wait(60) == 0
    os.close(ours)
