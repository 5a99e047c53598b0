"""Threads starved of the GIL, signal handlers and finalizers lose no span while the disk works."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from otel_rollout.base.waits import Waits, wait_until, waits
from otel_rollout.record.recording import flusher
from otel_rollout.record.recording.writer import SegmentWriter
from otel_rollout.spool import journal
from tests.spool.test_journal import bodies, writer_in
from tests.waits import set_waits


@pytest.fixture
def memory():
    """Give a directory in memory, so that other writes of the machine do not matter."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture
def healthy_disk(memory, monkeypatch):
    """Put the spool into memory."""
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIR", str(memory))
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_LIMIT", "1000000000")


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


@pytest.mark.parametrize("interruption", ["signals", "finalizers"])
def test_spans_that_interrupt_a_wait_for_room_lose_none(healthy_disk, interruption):
    """A full journal, whose waiting caller records more in handlers or finalizers, costs no span."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.recording.programs.interrupting_spans", interruption],
        capture_output=True,
        check=True,
        text=True,
    )
    flushed, started, recorded, dropped = json.loads(ran.stdout)
    assert (flushed, recorded, dropped) == (True, started, 0), ran.stderr


def test_callers_wait_for_a_starved_thread_that_writes(memory, monkeypatch):
    """A lock holder that waits for the GIL costs the others no span."""
    set_waits(monkeypatch, journal_room=0.05)
    writer = writer_in(memory)
    entered, publish = threading.Event(), journal.Journal.publish

    def slowly(self: journal.Journal, written: int, lines: int = 0) -> None:
        if threading.current_thread().name == "holder":
            entered.set()
            end = time.monotonic() + 5 * waits().journal_room
            while time.monotonic() < end:  # in Python, so that other threads' Python delays this one
                pass
        publish(self, written, lines)

    monkeypatch.setattr(journal.Journal, "publish", slowly)
    monkeypatch.setattr(flusher, "MIN_CHECKS", 1 << 30)  # how often a caller checks here depends on luck
    holder = threading.Thread(target=writer.write, args=(b"first\n",), name="holder", daemon=True)
    holder.start()
    assert entered.wait(10)
    assert writer.write(b"second\n")
    holder.join(10)
    writer.close(10)
    assert bodies(memory) == [b"first", b"second"]


def record_by_a_handler(writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    """Write a line that a signal handler interrupts to write another."""
    publish = journal.Journal.publish

    def struck(self: journal.Journal, written: int, lines: int = 0) -> None:
        monkeypatch.setattr(journal.Journal, "publish", publish)
        signal.raise_signal(signal.SIGALRM)
        publish(self, written, lines)

    def ring(*_: object) -> None:
        assert writer.write((b"by the ", b"handler\n"))

    before = signal.signal(signal.SIGALRM, ring)
    monkeypatch.setattr(journal.Journal, "publish", struck)
    try:
        assert writer.write(line)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_span_of_a_signal_handler_inside_a_write_is_recorded(memory, monkeypatch):
    """The handler does not wait for its own thread.

    The handler's span comes right after.
    """
    monkeypatch.setattr(flusher.Patience, "sleep", pytest.fail)
    writer = writer_in(memory)
    for number in range(20):
        record_by_a_handler(writer, monkeypatch, b"%d\n" % number)
        assert writer.flush(10)
    writer.close(10)
    lines = bodies(memory)
    assert sorted(lines) == sorted([*(b"%d" % number for number in range(20)), *[b"by the handler"] * 20])
    assert not any(writer.counts().drops.values())


def test_thread_that_cannot_wait_for_a_handler_loses_no_span(memory, monkeypatch):
    """A handler that interrupts a write, and takes long, costs other threads no span, and one wait."""
    writer, publish = writer_in(memory), journal.Journal.publish

    def struck(self: journal.Journal, written: int, lines: int = 0) -> None:
        monkeypatch.setattr(journal.Journal, "publish", publish)
        signal.raise_signal(signal.SIGALRM)
        publish(self, written, lines)

    def record() -> None:
        for number in range(1000):
            assert writer.write(b"%d\n" % number)

    def handle(*_: object) -> None:
        thread = threading.Thread(target=record)
        thread.start()
        thread.join(100 * waits().journal_room)
        assert not thread.is_alive()

    before = signal.signal(signal.SIGALRM, handle)
    monkeypatch.setattr(journal.Journal, "publish", struck)
    try:
        assert writer.write(b"interrupted\n")
    finally:
        signal.signal(signal.SIGALRM, before)
    writer.close(10)
    assert sorted(bodies(memory)) == sorted([b"interrupted", *(b"%d" % number for number in range(1000))])


@pytest.fixture
def slow_disk(monkeypatch):
    """Let each write to a segment take a while, and few bytes."""
    real_write = flusher.os.write

    def write(descriptor: int, data: bytes) -> int:
        time.sleep(Waits().journal_room / 4)
        return real_write(descriptor, data)

    monkeypatch.setattr(flusher.os, "write", write)
    monkeypatch.setattr(flusher, "FLUSH_CHUNK", 4096)
    monkeypatch.setattr(flusher, "CATCH_UP_CHUNK", 8192)


def test_slow_disk_that_works_loses_no_span(memory, slow_disk, monkeypatch):
    """Threads that record faster than the disk writes wait for the disk."""
    writer = writer_in(memory, journal_bytes=1 << 14)
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
    assert (written.count(True), len(bodies(memory))) == (200, 200)


def test_signal_handlers_wait_for_a_slow_disk(memory, slow_disk, monkeypatch):
    """Handlers that record more than memory may hold wait for the disk, as their thread does."""
    monkeypatch.setattr(flusher, "MAX_POSTPONED", 1 << 12)
    writer, rung = writer_in(memory, journal_bytes=1 << 14), 0

    def ring(*_: object) -> None:
        nonlocal rung
        rung += 1
        for _ in range(10):
            assert writer.write(b"r" * 1000 + b"\n")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        for _ in range(30):
            signal.setitimer(signal.ITIMER_REAL, 0.005)
            assert writer.write(b"x" * 4000 + b"\n")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    monkeypatch.undo()
    writer.close(30)
    assert rung
    assert len(bodies(memory)) == 30 + 10 * rung


def test_finalizers_in_the_thread_that_writes_lose_no_span(memory):
    """The thread that makes room does not wait for room when a finalizer of the application records in it."""

    class Closed:
        def __del__(self) -> None:
            results.append(writer.write(b"closed\n"))

    results: list[bool] = []
    writer = writer_in(memory, journal_bytes=1 << 14, observe=lambda lines: b"x" in lines and Closed())
    assert all(writer.write(b"x" * 4000 + b"\n") for _ in range(100))
    writer.close(10)
    assert results
    assert all(results)
    assert sorted(bodies(memory)) == sorted([b"x" * 4000] * 100 + [b"closed"] * len(results))


def test_thread_that_writes_never_waits_for_the_lock(memory, monkeypatch):
    """A caller may take the lock, and wait for room, just after a finalizer there saw the lock free."""

    class JustTaken:
        def __init__(self) -> None:
            self.real = threading.Lock()
            self.acquire, self.release = self.real.acquire, self.real.release

        def locked(self) -> bool:
            return threading.current_thread().name != "otel-rollout-flush" and self.real.locked()

        def __enter__(self) -> bool:
            return self.real.__enter__()

        def __exit__(self, *raised: object) -> None:
            self.real.release()

    class Closed:
        def __del__(self) -> None:
            assert writer.write(b"closed\n")

    def observe(_: bytes) -> None:
        if not observed:
            observed.append(wait_until(lock.real.locked, 10))
            Closed()

    set_waits(monkeypatch, journal_room=60)
    observed: list[bool] = []
    lock, writer = JustTaken(), writer_in(memory, journal_bytes=1 << 14, observe=observe)
    writer._lock = writer._flusher._lock = lock
    assert all(writer.write(b"x" * 4000 + b"\n") for _ in range(10))
    writer.close(10)
    assert observed == [True]
    assert sorted(bodies(memory)) == sorted([b"x" * 4000] * 10 + [b"closed"])
