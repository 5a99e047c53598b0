"""Many Python threads, starved of the GIL, lose no span while the disk works."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from otel_rollout.recording import flusher, patience
from otel_rollout.recording.patience import MAX_WAIT
from otel_rollout.recording.writer import SegmentWriter
from otel_rollout.spool import journal
from tests.spool.test_journal import bodies, writer_in


@pytest.fixture
def healthy_disk(monkeypatch):
    """Put the spool into memory, so that other writes of the machine do not matter."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as directory:
        monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIR", directory)
        monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_LIMIT", "1000000000")
        yield


@pytest.mark.parametrize(
    ("threads", "calls", "steps"), [(32, 60, 60_000), (64, 200, 3000), (64, 300, 30), (200, 100, 300)]
)
def test_threads_that_starve_each_other_lose_no_span(healthy_disk, threads, calls, steps):
    """No span is lost, from slow graders to loops that only record."""
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.recording.programs.starving_threads",
            str(threads),
            str(calls),
            str(steps),
        ],
        capture_output=True,
        check=True,
        text=True,
    )
    spans = threads * (calls + 1)
    assert json.loads(ran.stdout) == [True, spans, spans, 0], ran.stderr


def test_callers_wait_for_a_starved_thread_that_writes(tmp_path, monkeypatch):
    """A lock holder that waits for the GIL costs the others no span."""
    writer = writer_in(tmp_path)
    entered, publish = threading.Event(), journal.Journal.publish

    def slowly(self: journal.Journal, written: int, lines: int = 0) -> None:
        if threading.current_thread().name == "holder":
            entered.set()
            end = time.monotonic() + 5 * MAX_WAIT
            while time.monotonic() < end:  # in Python, so that other threads' Python delays this one
                pass
        publish(self, written, lines)

    monkeypatch.setattr(journal.Journal, "publish", slowly)
    monkeypatch.setattr(patience, "MIN_CHECKS", 1 << 30)  # how often a caller checks here depends on luck
    holder = threading.Thread(target=writer.write, args=(b"first\n",), name="holder", daemon=True)
    holder.start()
    assert entered.wait(10)
    assert writer.write(b"second\n")
    holder.join(10)
    writer.close(10)
    assert bodies(tmp_path) == [b"first", b"second"]


def recorded_by_a_handler(writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch, line: bytes) -> float:
    """Write a line that a signal handler interrupts to write another.

    Return the handler's seconds.
    """
    publish, took = journal.Journal.publish, []

    def struck(self: journal.Journal, written: int, lines: int = 0) -> None:
        monkeypatch.setattr(journal.Journal, "publish", publish)
        signal.raise_signal(signal.SIGALRM)
        publish(self, written, lines)

    def ring(*_: object) -> None:
        begun = time.perf_counter()
        assert writer.write((b"by the ", b"handler\n"))
        took.append(time.perf_counter() - begun)

    before = signal.signal(signal.SIGALRM, ring)
    monkeypatch.setattr(journal.Journal, "publish", struck)
    try:
        assert writer.write(line)
    finally:
        signal.signal(signal.SIGALRM, before)
    return took[0]


def test_span_of_a_signal_handler_inside_a_write_is_recorded(tmp_path, monkeypatch):
    """The handler does not wait for its own thread.

    The handler's span comes right after.
    """
    writer = writer_in(tmp_path)
    for number in range(20):
        assert recorded_by_a_handler(writer, monkeypatch, b"%d\n" % number) < MAX_WAIT
        assert writer.flush(10)
    writer.close(10)
    lines = bodies(tmp_path)
    assert sorted(lines) == sorted([*(b"%d" % number for number in range(20)), *[b"by the handler"] * 20])
    assert not any(writer.counts().drops.values())


def test_slow_disk_that_works_loses_no_span(tmp_path, monkeypatch):
    """Threads that record faster than the disk writes wait for the disk."""
    real_write = flusher.os.write

    def write(descriptor: int, data: bytes) -> int:
        time.sleep(MAX_WAIT / 4)
        return real_write(descriptor, data)

    monkeypatch.setattr(flusher.os, "write", write)
    monkeypatch.setattr(flusher, "FLUSH_CHUNK", 4096)
    monkeypatch.setattr(flusher, "CATCH_UP_CHUNK", 8192)
    writer = writer_in(tmp_path, journal_bytes=1 << 14)
    written: list[bool] = []

    def record() -> None:
        written.extend([writer.write(b"x" * 500 + b"\n") for _ in range(25)])

    threads = [threading.Thread(target=record, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    monkeypatch.undo()
    writer.close(30)
    assert (written.count(True), len(bodies(tmp_path))) == (200, 200)
