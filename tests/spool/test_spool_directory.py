"""A spool directory that cannot be used: training goes on, one message says why."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.account import ledger
from otel_rollout.deliver import delivery
from otel_rollout.record import runtime
from otel_rollout.record.recording.flusher import FLUSH_CHUNK
from otel_rollout.record.recording.writer import JOURNAL_BYTES
from otel_rollout.spool import layout, segments
from tests.exporters import FileExporter
from tests.waiting import wait_for
from tests.waits import set_waits

pytestmark = pytest.mark.usefixtures("forwarder")


@rollout_trace_op(name="op")
def op(text: str) -> int:
    return len(text)


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Mount file systems of some megabytes, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    options = f"size={request.param}M,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def recording_there(
    fresh_process: None, test_exporters: None, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Switch tracing on, with the spool on that disk and the target on another."""
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIR", str(disk / "spool"))
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "test-file")
    monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "delivered"))
    return disk


def record(count: int) -> list[int]:
    """Record a trajectory; return the results of its operations."""
    with rollout_trace_attr(step=1):
        return [op("x" * 10_000) for _ in range(count)]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("disk", [1], indirect=True)
def test_full_disk_at_the_start_leaves_the_program_untraced(
    recording_there: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One error says what is full and which variable chooses another directory."""
    assert record(3) == [10_000] * 3
    assert not list(recording_there.rglob("*.journal"))
    (message,) = said(caplog)
    assert "tracing is OFF" in message
    assert "No space left on device" in message
    assert str(recording_there) in message
    assert "OTEL_ROLLOUT_SPOOL_DIR" in message


@pytest.mark.parametrize("disk", [1], indirect=True)
def test_read_only_spool_directory_leaves_the_program_untraced(
    recording_there: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One error names the directory."""
    subprocess.run(["mount", "-o", "remount,ro", recording_there], check=True)
    assert record(3) == [10_000] * 3
    (message,) = said(caplog)
    assert "Read-only file system" in message
    assert "OTEL_ROLLOUT_SPOOL_DIR" in message


def test_missing_spool_directory_is_created(
    tracing: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent directories are created, too, for this user alone."""
    otel_rollout.configure(spool_dir=str(tmp_path / "a" / "b" / "spool"))
    record(1)
    (node_dir,) = layout.node_directories(tmp_path / "a" / "b" / "spool")
    assert node_dir.stat().st_mode & 0o077 == 0


def fill(disk: Path, leave: int) -> Path:
    """Fill a disk up to some bytes, as a checkpoint does."""
    ballast = disk / "checkpoint"
    with ballast.open("wb") as file:
        file.write(b"x" * max(0, shutil.disk_usage(disk).free - leave))
    return ballast


def record_until_it_is_recorded() -> None:
    """Record until the flusher has found space."""
    recorded = otel_rollout.status().recorded

    def is_recorded_again() -> bool:
        record(10)
        return otel_rollout.status().recorded >= recorded + 100

    wait_for(is_recorded_again, what="recording to go on")


@pytest.mark.parametrize("disk", [32], indirect=True)
def test_half_of_a_disk_is_left_to_others(
    recording_there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default limit is half of what is free at the start."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "test-faulty")
    Path(tmp_path / "delivered.fault").write_text("unavailable")
    free = shutil.disk_usage(recording_there).free
    record(3000)
    report = otel_rollout.shutdown(0.5)
    assert report.dropped["spool_limit"] > 0
    most = free // 2 + FLUSH_CHUNK + JOURNAL_BYTES
    assert free // 3 < layout.segment_bytes(Path(report.directory)) < most


@pytest.mark.parametrize("disk", [64], indirect=True)
def test_a_disk_that_fills_while_recording_twice(
    recording_there: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spans that do not fit are dropped and counted; all others arrive once."""
    dropped = 0
    for _ in range(2):
        record_until_it_is_recorded()
        ballast = fill(recording_there, leave=1 << 20)
        assert record(1500) == [10_000] * 1500
        before, dropped = dropped, sum(otel_rollout.status().dropped.values())
        assert dropped > before + 500
        ballast.unlink()
        record_until_it_is_recorded()
    report = otel_rollout.shutdown(60)
    assert report.started == report.recorded + sum(report.dropped.values())
    assert (report.exporters["test-file"].delivered, report.lost) == (report.recorded, 0)
    ids = [json.loads(line)[0] for line in (tmp_path / "delivered").read_text().splitlines()]
    assert len(ids) == len(set(ids)) == report.recorded
    assert sum("cannot write to" in message for message in said(caplog)) == 2


@pytest.mark.parametrize("disk", [16], indirect=True)
def test_a_short_write_followed_by_a_good_line(recording_there: Path, tmp_path: Path) -> None:
    """The disk takes a part of a write.

    Later lines follow the other part, and none is lost.
    """
    record(1)
    (node_dir,) = layout.node_directories(recording_there / "spool")
    (segment,) = [node_dir / name.file for name in layout.segments(node_dir)]
    wait_for(lambda: otel_rollout.status().exporters["test-file"].delivered == 2, what="delivery")
    ballast = fill(recording_there, leave=200_000)
    record(50)
    wait_for(lambda: not segment.read_bytes().endswith(b"\n"), what="half a line")
    ballast.unlink()
    record(1)
    report = otel_rollout.shutdown(60)
    assert (report.recorded, report.dropped, report.lost) == (2 + 51 + 2, {}, 0)
    assert report.exporters["test-file"].rejected == 0
    ids = [json.loads(line)[0] for line in (tmp_path / "delivered").read_text().splitlines()]
    assert len(ids) == len(set(ids)) == report.recorded


@pytest.mark.parametrize("disk", [16], indirect=True)
def test_a_disk_that_is_full_when_a_cursor_is_to_be_written(
    recording_there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Delivered spans are noted once there is space, and not sent again before that."""
    set_waits(monkeypatch, longest_retry=0.05)
    record(3)
    active = runtime.current()
    assert active is not None
    active.keeper.stop()
    assert active.writer.flush(10)
    (node_dir,) = layout.node_directories(recording_there / "spool")
    ledger.Ledger(node_dir).close()
    target = tmp_path / "second"

    class FillsTheDisk(FileExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            fill(recording_there, leave=0)
            return super().export(spans)

    delivering = delivery.Delivery("second", FillsTheDisk(str(target)), node_dir)
    delivering.start()
    wait_for(lambda: caplog.text.count("cannot record the progress of second") > 1, what="two attempts")
    assert not delivering.is_caught_up()
    (recording_there / "checkpoint").unlink()
    wait_for(delivering.is_caught_up, what="the cursor")
    delivering.stop(10)
    assert len(target.read_text().splitlines()) == 4


@pytest.mark.parametrize("disk", [16], indirect=True)
def test_dead_letter_file_on_a_full_disk_holds_whole_entries(recording_there: Path) -> None:
    """Neither a full disk nor a kill leaves half an entry."""
    path = recording_there / "rejected.jsonl"
    segments.append_line(path, b"first\n")
    ballast = fill(recording_there, leave=20_000)
    with pytest.raises(OSError, match="No space left"):
        segments.append_line(path, b"x" * 100_000 + b"\n")
    assert path.read_bytes() == b"first\n"
    ballast.unlink()
    with path.open("ab") as file:
        file.write(b"half of")
    segments.append_line(path, b"second\n")
    assert path.read_bytes() == b"first\nsecond\n"


def test_removed_spool_directory_is_created_again(
    tracing: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Undelivered spans are lost, and a warning says so; no span arrives twice."""
    assert record(1) == [10_000]
    wait_for(lambda: otel_rollout.status().exporters["test-file"].delivered == 2, what="delivery")
    with rollout_trace_attr(step=1):
        op("x" * 10_000)
        wait_for(lambda: otel_rollout.status().exporters["test-file"].delivered == 3, what="delivery")
        while (tmp_path / "spool").exists():  # the forwarder may be making a file there
            shutil.rmtree(tmp_path / "spool", ignore_errors=True)
        op("x" * 10_000)
    assert record(3) == [10_000] * 3
    report = otel_rollout.shutdown(60)
    assert (report.recorded, report.exporters["test-file"].delivered, report.lost) == (6, 6, 0)
    assert (report.started, report.open, report.unfinished) == (6, 0, 0)
    ids = [json.loads(line)[0] for line in (tmp_path / "spool-delivered.jsonl").read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 9
    assert sum("somebody removed files" in message for message in said(caplog)) == 1


def test_a_manifest_that_is_removed_under_way(tracing: None, tmp_path: Path) -> None:
    """Commands find the run again soon, with an equal manifest."""
    record(1)
    (node_dir,) = layout.node_directories(tmp_path / "spool")
    described = layout.read_manifest(node_dir)
    (node_dir / layout.MANIFEST).unlink()
    wait_for(lambda: layout.node_directories(tmp_path / "spool") == [node_dir], what="the manifest")
    assert layout.read_manifest(node_dir) == described is not None
    assert otel_rollout.shutdown(60).exporters["test-file"].delivered == 2


@pytest.mark.parametrize("files", ["ledger.sqlite", "ledger.sqlite*"])
def test_a_ledger_that_is_removed_under_way(tracing: None, tmp_path: Path, files: str) -> None:
    """The ledger is put back with its content; no span is lost or arrives twice."""
    record(3)
    wait_for(lambda: otel_rollout.status().exporters["test-file"].delivered == 4, what="delivery")
    (node_dir,) = layout.node_directories(tmp_path / "spool")
    for following in (0, 3):
        for path in node_dir.glob(files):
            path.unlink(missing_ok=True)
        if following:
            record(following)
        else:
            wait_for(lambda: otel_rollout.status().exporters["test-file"].delivered == 4, what="the ledger")
    report = otel_rollout.shutdown(60)
    assert (report.recorded, report.exporters["test-file"].delivered, report.lost) == (8, 8, 0)
    ids = [json.loads(line)[0] for line in (tmp_path / "spool-delivered.jsonl").read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 8


@pytest.mark.parametrize("undelivered", [0, 3])
def test_a_segment_that_is_removed_under_way(
    fresh_process: None,
    test_exporters: None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    undelivered: int,
) -> None:
    """Recording goes on in another segment, and the report counts the lost spans."""
    target = tmp_path / "delivered"
    otel_rollout.configure({"test-faulty": {"path": str(target)}})
    record(4)
    wait_for(lambda: otel_rollout.status().exporters["test-faulty"].delivered == 5, what="delivery")
    active = runtime.current()
    assert active is not None
    if undelivered:
        Path(f"{target}.fault").write_text("unavailable")
        record(undelivered - 1)
        assert active.writer.flush(10)
    (node_dir,) = layout.node_directories(tmp_path / "spool")
    for name in layout.segments(node_dir):
        (node_dir / name.file).unlink()
    record(4)
    Path(f"{target}.fault").unlink(missing_ok=True)
    otel_rollout.shutdown(1)
    wait_for(lambda: otel_rollout.status().exporters["test-faulty"].pending == 0, what="delivery")
    report = otel_rollout.status()
    delivered = report.exporters["test-faulty"].delivered
    assert (report.recorded, report.started) == (10 + undelivered,) * 2
    assert delivered + report.lost == report.recorded
    assert report.lost <= undelivered  # the forwarder may have read them before they were removed
    assert len(target.read_text().splitlines()) == delivered
    assert sum("somebody removed files" in message for message in said(caplog)) == 1
