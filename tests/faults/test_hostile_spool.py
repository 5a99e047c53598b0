"""Test spools that another user made: files of others are not read or written.

These tests run as root, which no file permission restricts. Pipes of others are not waited for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout import rollout_trace_attr, settings
from otel_rollout.account import ledger, node_report
from otel_rollout.cli import forwarding
from otel_rollout.look.sources.private_table import asked_as_table
from otel_rollout.look.sources.spool_source import SpoolSource
from otel_rollout.record.launch import drain, launcher, transfer
from otel_rollout.record.runs import founding, membership
from otel_rollout.spool import layout
from otel_rollout.spool.layout import SegmentName
from otel_rollout.spool.private_files import ForeignFileError
from tests.faults import hostile
from tests.forwarders import wait_for_end
from tests.waiting import wait_for

COMMAND = [sys.executable, "-c", "from otel_rollout.cli import app; app()"]
FORWARDER = [sys.executable, "-m", "otel_rollout.forwarder"]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file that only root may read or write."""
    path = tmp_path / "root-only" / "secret"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(hostile.SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a directory like /tmp: users create files, and remove only their own."""
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def target(test_exporters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "delivered"))
    return tmp_path / "delivered"


def assert_untouched(secret: Path, *places: Path) -> None:
    """Check that the secret is unchanged, was not copied, and has no new neighbour."""
    assert secret.read_bytes() == hostile.SECRET
    assert os.listdir(secret.parent) == [secret.name]
    for place in places:
        for path in [place, *place.rglob("*")]:
            if path.is_file() and not path.is_symlink() and not path.samefile(secret):
                assert hostile.SECRET.strip() not in path.read_bytes(), path


def of_nobody(shared: Path, secret: Path) -> Path:
    """Return a node directory of another user, with a linked segment, forged journal."""
    node_dir = hostile.node_directory(shared / "spool")
    (node_dir / SegmentName("3-00000000000000cc", 1).file).symlink_to(secret)
    (node_dir / "rejected.test-file.jsonl").touch()
    (node_dir / "rejected.test-file.jsonl").chmod(0o666)
    hostile.forge_journal(node_dir, secret)
    hostile.give_away(shared / "spool")
    return node_dir


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ([*COMMAND, "forward", "--spool", "NODE"], 2),
        ([*COMMAND, "forward", "--spool", "SPOOL"], 2),
        ([*COMMAND, "forward", "--watch", "--spool", "SPOOL"], 2),
        ([*COMMAND, "status", "--steps", "--spool", "SPOOL"], 2),
        ([*COMMAND, "status", "--json", "--all", "--spool", "NODE"], 2),
        ([*FORWARDER, "NODE"], 1),
    ],
    ids=lambda value: " ".join(value[-3:]) if isinstance(value, list) else "",
)
def test_root_reads_and_writes_nothing_in_spool_of_another_user(
    command: list[str], code: int, shared: Path, secret: Path, target: Path
) -> None:
    """Commands and forwarder change nothing; one line names the directory's owner."""
    node_dir = of_nobody(shared, secret)
    before = {path.name: path.lstat().st_mtime_ns for path in node_dir.iterdir()}
    named = {"NODE": str(node_dir), "SPOOL": str(shared / "spool")}
    ran = subprocess.run(
        [named.get(word, word) for word in command], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == code, ran.stderr
    assert ran.stderr.count("belongs to user id 65534, not to 0") == 1, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "secret" not in ran.stdout + ran.stderr
    assert {path.name: path.lstat().st_mtime_ns for path in node_dir.iterdir()} == before
    assert not target.exists()
    assert_untouched(secret, shared)


def test_root_shows_and_replays_no_link_of_another_user(shared: Path, secret: Path, target: Path) -> None:
    """A directory that a person names is read, but links in it are not followed."""
    node_dir = of_nobody(shared, secret)
    for arguments in (["show", "--from", node_dir], ["replay", node_dir, "--to", "test-file"]):
        ran = subprocess.run(
            [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 2
        assert "is a link" in ran.stderr or "There is no trajectory" in ran.stderr, ran.stderr
        assert "secret-of-root" not in ran.stdout + ran.stderr
    assert_untouched(secret, shared)
    assert not target.exists()


def test_spool_of_another_user_is_not_shown_as_ones_own(
    shared: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's directory in place of the spool is shown only if named."""
    of_nobody(shared, secret)
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIR", str(shared / "spool"))
    ran = subprocess.run([*COMMAND, "show"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"{shared / 'spool'} belongs to user id 65534, not to 0 ")
    assert ran.stderr.count("\n") == 1


def test_files_of_another_user_are_replayed_when_named(shared: Path, target: Path) -> None:
    """A named directory may be another user's, if its files belong to that user."""
    node_dir = hostile.node_directory(shared / "spool")
    hostile.give_away(shared / "spool")
    subprocess.run([*COMMAND, "replay", str(node_dir), "--to", "test-file"], timeout=60, check=True)
    assert len(target.read_text().splitlines()) == 1


EVERYTHING_BUT_WHAT_DELIVERY_NEEDS = (
    SegmentName(hostile.WRITER, 1).file,
    SegmentName(hostile.WRITER, layout.CLOSING_SEQUENCE).file,
    hostile.WRITER + layout.JOURNAL_SUFFIX,
    hostile.WRITER + layout.OPEN_SUFFIX,
    "ledger.sqlite",
    "ledger.sqlite-wal",
    "ledger.sqlite-shm",
    "ledger.sqlite-journal",
    "forwarder.log",
    "run.json",
    "trackers.json",
    "draining",
    "waiting",
    "tokenizers",
    "archive",
)


@pytest.mark.parametrize("plant", hostile.PLANTS, ids=lambda plant: plant.__name__)
@pytest.mark.parametrize(
    "names",
    [
        EVERYTHING_BUT_WHAT_DELIVERY_NEEDS,
        ("ledger.sqlite-wal", "tokenizers/0123.json", hostile.WRITER + layout.OPEN_SUFFIX),
        ("rejected.test-file.jsonl",),
        ("forwarder.lock",),
    ],
    ids=lambda names: names[0],
)
def test_foreign_object_in_place_of_a_file_is_left_untouched(
    names: tuple[str, ...],
    plant: Callable[[Path, Path], None],
    shared: Path,
    secret: Path,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unpacked archive may hold links and pipes: they are not followed or read.

    A valid line beside such an object is delivered, unless delivery needs the replaced file; then the report
    says so.
    """
    node_dir = hostile.node_directory(shared / "spool")
    (node_dir / "run.json").unlink()
    for name in names:
        (node_dir / name).parent.mkdir(exist_ok=True)
        plant(node_dir / name, secret)
    configured = settings.Settings(exporters={"test-file": {}}, keep=True, outcome_keep="errors,rate=1")

    def use() -> None:
        with contextlib.suppress(ForeignFileError):
            forwarding.forward_directory(node_dir, configured)
        assert dict(drain.drain(node_dir, configured, 0).by_step) is not None
        assert layout.read_trackers(node_dir) == {}
        assert layout.read_manifest(node_dir) is None
        with contextlib.suppress(ForeignFileError):
            launcher.ensure_forwarder(node_dir, configured)
        with contextlib.suppress(ForeignFileError):
            transfer.next_piece(node_dir, {})
        with asked_as_table(SpoolSource(node_dir)) as source:
            source.find(None)

    user = threading.Thread(target=use, daemon=True)
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    user.start()
    user.join(60)
    assert not user.is_alive(), "the program waits for a pipe"
    assert not failures, failures
    assert_untouched(secret, target, shared)
    if names == ("forwarder.lock",):
        assert not target.exists()
        with pytest.raises(ForeignFileError, match=r"forwarder\.lock"):
            launcher.ensure_forwarder(node_dir, configured)
        return
    if names == ("rejected.test-file.jsonl",):
        assert not target.exists()
        # The forwarder that was started last says it once more.
        wait_for(
            lambda: names[0] in str(node_report.report(node_dir, configured).exporters["test-file"].problem)
        )
    else:
        assert len(target.read_text().splitlines()) == 1
    wait_for_end(node_dir)


def test_directory_that_others_can_write_to_is_not_used(
    shared: Path, secret: Path, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Others could plant links there; the log line says how to change permissions."""
    node_dir = hostile.node_directory(shared / "spool")
    node_dir.chmod(0o777)
    assert layout.node_directories(shared / "spool") == []
    assert f"{node_dir} is writable by other users; `chmod go-w {node_dir}` changes that" in caplog.text
    with pytest.raises(ForeignFileError, match="chmod go-w"):
        forwarding.forward_directory(node_dir, settings.Settings())
    with pytest.raises(ForeignFileError, match="OTEL_ROLLOUT_SPOOL_DIR"):
        layout.create_private(node_dir, shared / "spool")
    with pytest.raises(ForeignFileError):
        ledger.Ledger(node_dir)
    assert not target.exists()


@pytest.mark.parametrize("squatted", ["spool", "spool/run", "spool/run/node"])
@pytest.mark.parametrize("form", ["directory", "link"])
def test_spool_made_by_another_user_switches_tracing_off(
    squatted: str,
    form: str,
    fresh_process: None,
    shared: Path,
    secret: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program runs untraced, and one line gives the reason."""
    path = shared / squatted
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "link":
        path.symlink_to(secret.parent)
        os.chown(path, hostile.NOBODY, hostile.NOBODY, follow_symlinks=False)
    else:
        path.mkdir()
        hostile.give_away(path)
    monkeypatch.setenv("OTEL_ROLLOUT_RUN_ID", "run")
    monkeypatch.setenv("OTEL_ROLLOUT_NODE", "node")
    otel_rollout.configure("console", spool_dir=str(shared / "spool"))
    with rollout_trace_attr():
        pass
    (record,) = caplog.records
    assert "tracing is OFF" in record.message
    assert "OTEL_ROLLOUT_SPOOL_DIR" in record.message
    assert_untouched(secret)


def test_directory_swapped_during_recording_is_not_written(
    fresh_process: None, test_exporters: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory that others put in place of the spool is not read or written."""
    spool_dir = tmp_path / "open-to-all"
    spool_dir.mkdir()
    spool_dir.chmod(0o777)
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, spool_dir=str(spool_dir))
    with rollout_trace_attr():
        pass
    node_dir = founding.node_directory(membership.decide())
    wait_for(lambda: otel_rollout.status().exporters["test-file"].delivered == 1, what="delivery")
    node_dir.parent.rename(tmp_path / "away")
    node_dir.mkdir(parents=True)
    node_dir.chmod(0o777)
    hostile.give_away(node_dir.parent)
    for _ in range(20):
        with rollout_trace_attr():
            pass
    wait_for(lambda: "cannot write to" in caplog.text, what="a line")
    report = otel_rollout.shutdown(1)
    assert "belongs to user id 65534" in str(report.problem)
    assert list(node_dir.iterdir()) == []
    shutil.rmtree(tmp_path / "away")
