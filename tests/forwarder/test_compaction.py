"""Test retention: delivered segments are removed or archived; counts stay right."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from backports import zstd

import otel_rollout
from otel_rollout.deliver import compaction
from otel_rollout.deliver.crash_recovery import CrashRecovery
from otel_rollout.deliver.delivery import Delivery
from otel_rollout.deliver.forwarder import Forwarder
from otel_rollout.record import runtime
from otel_rollout.record.recording.flusher import FLUSH_CHUNK
from otel_rollout.record.recording.writer import JOURNAL_BYTES, SegmentWriter
from otel_rollout.record.runs import membership
from otel_rollout.settings import Settings
from otel_rollout.spool import layout, segments
from otel_rollout.spool.locks import ForwarderLock
from tests.forwarder.test_delivery import delivered, node_directory, record
from tests.forwarders import wait_for_end
from tests.small_segments import set_segment_bytes
from tests.spool_reader import read_directory
from tests.waiting import wait_for


@pytest.fixture
def removing(
    fresh_process: None, test_exporters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Switch tracing on, with many small segments that are removed once delivered."""
    set_segment_bytes(20_000, monkeypatch)
    otel_rollout.configure({"test-faulty": {"path": str(tmp_path / "delivered")}}, keep=False)


def segments_of(tmp_path: Path) -> list[layout.SegmentName]:
    return layout.segments(node_directory(tmp_path))


def test_delivered_segments_are_removed_at_the_end(removing: None, tmp_path: Path) -> None:
    """A finished run keeps only its counts; the delivery report does not change."""
    record(200)
    report = otel_rollout.shutdown(30)
    node_dir = node_directory(tmp_path)
    wait_for_end(node_dir)
    assert segments_of(tmp_path) == []
    assert not (node_dir / layout.ARCHIVE).exists()
    assert otel_rollout.status() == report
    assert (report.recorded, report.exporters["test-faulty"].delivered, report.lost) == (201, 201, 0)


def test_trajectory_of_a_killed_process_stays_counted_without_its_segments(
    removing: None, tmp_path: Path
) -> None:
    """Crash recovery's segment stays, so that the report still counts the trajectory."""
    membership.decide()
    subprocess.run([sys.executable, "-m", "tests.forwarder.programs.killed_in_trajectory"], check=False)
    node_dir = node_directory(tmp_path)
    wait_for(lambda: not segments.living_writers(node_dir), what="a child that the program was starting")
    report = otel_rollout.shutdown(30)
    wait_for_end(node_dir)
    assert otel_rollout.status() == report
    assert (report.started, report.recorded, report.unfinished, report.lost) == (2, 2, 0, 0)
    assert [name.sequence for name in segments_of(tmp_path)] == [layout.CLOSING_SEQUENCE]


def test_delivered_segments_are_removed_while_the_run_goes_on(
    removing: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last two segments of a living writer stay."""
    for _ in range(5):
        record(99)
        active = runtime.current()
        assert active is not None
        assert active.writer.flush(10)
    wait_for(lambda: otel_rollout.status().exporters["test-faulty"].delivered == 500, what="delivery")
    names = segments_of(tmp_path)
    assert len(names) > 2
    for name in names:  # a minute passes
        os.utime(node_directory(tmp_path) / name.file, (time.time() - 61,) * 2)
    wait_for(lambda: len(segments_of(tmp_path)) == 2, what="removal")
    assert segments_of(tmp_path) == names[-2:]
    report = otel_rollout.status()
    assert (report.recorded, report.exporters["test-faulty"].delivered, report.lost) == (500, 500, 0)


def test_undelivered_segments_are_not_removed(removing: None, tmp_path: Path) -> None:
    """Segments stay while a target is unavailable or refuses exports."""
    Path(tmp_path / "delivered.fault").write_text("refused")
    record(200)
    report = otel_rollout.shutdown(10)
    wait_for_end(node_directory(tmp_path))
    assert report.exporters["test-faulty"].pending == 201
    assert len(read_directory(tmp_path / "spool")) == 201


def test_kept_segments_are_compressed(
    fresh_process: None, test_exporters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With OTEL_ROLLOUT_KEEP the archive holds every line."""
    set_segment_bytes(20_000, monkeypatch)
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}})
    record(200)
    otel_rollout.shutdown(30)
    node_dir = node_directory(tmp_path)
    wait_for_end(node_dir)
    assert segments_of(tmp_path) == []
    assert len(read_directory(tmp_path / "spool")) == 201
    assert all(path.stat().st_mode & 0o077 == 0 for path in (node_dir / layout.ARCHIVE).iterdir())


def test_a_resent_context_is_stored_about_once(tmp_path: Path) -> None:
    """The compressor's long window finds the text that each turn resends."""
    path = tmp_path / "1-0123456789abcdef.000001.jsonl"
    context = b""
    with path.open("wb") as segment:
        for _ in range(30):
            context += os.urandom(40_000).hex().encode()
            segment.write(context + b"\n")
    kept = compaction.archive(path)
    assert kept.stat().st_size < 0.6 * len(context)
    plain = zstd.decompress(kept.read_bytes(), options={zstd.DecompressionParameter.window_log_max: 27})
    assert plain == path.read_bytes()


def test_spool_at_its_limit_drops_and_counts_spans(
    fresh_process: None, test_exporters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans beyond the limit are dropped at once, and counted as ``spool_limit``."""
    (tmp_path / "delivered.fault").write_text("unavailable")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "test-faulty")
    monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "delivered"))
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_LIMIT", "200000")
    monkeypatch.setenv("OTEL_ROLLOUT_SHUTDOWN_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_ROLLOUT_RUN_ID", "run")
    command = [sys.executable, "-m", "tests.forwarder.programs.fill_spool"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    (node_dir,) = layout.node_directories(tmp_path / "spool")
    assert layout.segment_bytes(node_dir) <= 200_000 + FLUSH_CHUNK + JOURNAL_BYTES
    assert "spool_limit" in ran.stdout
    assert "cannot write to" in ran.stderr
    assert "limit of 200000 bytes here" in ran.stderr


def test_the_empty_segment_of_a_living_writer_stays(tmp_path: Path) -> None:
    """A process that begins to record while the forwarder ends keeps its segment."""
    layout.write_manifest(tmp_path, layout.Manifest("run", "project", ()))
    writer = SegmentWriter(tmp_path, {}, segment_bytes=1 << 20)
    recovery = CrashRecovery(tmp_path)
    recovery.run()
    compaction.retire(tmp_path, lambda name, size: True, keep=False, ended=recovery.recovered)
    assert [name.writer for name in layout.segments(tmp_path)] == [writer.id]
    assert segments.living_writers(tmp_path) == {writer.id}
    writer.close(10)
    recovery.run()
    compaction.retire(tmp_path, lambda name, size: True, keep=False, ended=recovery.recovered)
    assert layout.segments(tmp_path) == []


def test_spans_of_a_process_that_is_killed_while_the_forwarder_ends_are_delivered(
    fresh_process: None, test_exporters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began after the forwarder's last look at the writers, and its segment is still empty."""
    stop, ran = Delivery.stop, []

    def record_and_be_killed(delivery: Delivery, timeout: float) -> None:
        stop(delivery, timeout)
        if not ran:
            ran.append(run_killed_worker(tmp_path))

    monkeypatch.setattr(Delivery, "stop", record_and_be_killed)
    node_dir = layout.node_directory(tmp_path / "spool", "run", "")
    node_dir.mkdir(parents=True, mode=0o700)
    lock = ForwarderLock(node_dir)
    assert lock.acquire()
    exporters = {"test-faulty": {"path": str(tmp_path / "delivered")}}
    Forwarder(node_dir, Settings(exporters=exporters), lock).run()
    assert ran
    assert sum(delivered(tmp_path / "delivered").values()) == 6


def run_killed_worker(directory: Path) -> int:
    """Run a process that records five operations, and kill it in their trajectory."""
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "test-faulty",
        "OTEL_TEST_FILE": str(directory / "delivered"),
        "OTEL_ROLLOUT_SPOOL_DIR": str(directory / "spool"),
        "OTEL_ROLLOUT_RUN_ID": "run",
    }
    command = [sys.executable, "-m", "tests.forwarder.programs.worker", "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"recorded\n"
        worker.kill()
    return worker.returncode
