"""Journal and segments lose no written line, whatever happens to the writer."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import PropertyMock, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.base.waits import Waits
from otel_rollout.record.recording import flusher
from otel_rollout.record.recording import writer as caller
from otel_rollout.record.recording.flusher import Patience
from otel_rollout.record.recording.writer import SegmentWriter
from otel_rollout.spool import journal, layout, segments
from tests.waiting import wait_for
from tests.waits import set_waits, variable


def writer_in(directory: Path, **options) -> SegmentWriter:
    return SegmentWriter(directory, {"service.name": "s"}, **{"segment_bytes": 1 << 30, **options})


def bodies(directory: Path) -> list[bytes]:
    """Return the lines of segments without their resource heads."""
    lines = b"".join((directory / name.file).read_bytes() for name in layout.segments(directory)).split(b"\n")
    assert lines.pop() == b"", "a torn line"
    return [line.split(b'"scopeSpans":[{', 1)[1] for line in lines]


PATIENT = variable(replace(Waits(), journal_room=60))
"""For a writer's callers to wait as long as the flusher takes on a busy machine."""
PIECE = st.binary(max_size=700).map(lambda piece: piece.replace(b"\n", b"n"))


@given(lines=st.lists(st.one_of(PIECE, st.lists(PIECE, max_size=9)), max_size=60))
def test_lines_come_out_in_order_through_a_small_ring(lines, tmp_path_factory):
    """The segment holds whole lines in order, however they wrap in the ring."""
    directory = tmp_path_factory.mktemp("ring")
    writer = writer_in(directory, journal_bytes=4096)
    with patch.dict(os.environ, PATIENT):
        for line in lines:
            assert writer.write(line + b"\n" if isinstance(line, bytes) else (*line, b"\n"))
    writer.close(10)
    assert bodies(directory) == [line if isinstance(line, bytes) else b"".join(line) for line in lines]


def test_line_larger_than_the_ring_is_written(tmp_path):
    """The line goes straight to the segment, between its neighbors."""
    writer = writer_in(tmp_path, journal_bytes=4096)
    lines = [b"before", b"x" * 100_000, b"between", b"y" * 100_000, b"after"]
    with patch.dict(os.environ, PATIENT):
        for line in lines:
            assert writer.write(line + b"\n")
        assert writer.write((b"in ", b"pieces" * 10_000, b"\n"))
    writer.close(10)
    assert bodies(tmp_path) == [*lines, b"in " + b"pieces" * 10_000]


def test_segments_rotate_between_lines_and_begin_uniquely(tmp_path):
    """At the size limit a new file begins, whose first 200 bytes name it."""
    writer = writer_in(tmp_path, segment_bytes=2000)
    lines = [b"%04d" % n + b"x" * 200 for n in range(100)]
    for line in lines:
        assert writer.write(line + b"\n")
        assert writer.flush(10)
    writer.close(10)
    assert bodies(tmp_path) == lines
    names = layout.segments(tmp_path)
    assert len(names) > 3
    for name in names[:-1]:  # the last one may have no line yet
        assert name.stem.encode() in (tmp_path / name.file).read_bytes()[:200]


def test_many_threads_write_whole_lines(tmp_path):
    """Threads of one process do not tear each other's lines."""
    writer = writer_in(tmp_path, journal_bytes=1 << 16)

    def write(thread: int) -> None:
        for n in range(200):
            assert writer.write(b"%d:%d:" % (thread, n) + b"y" * 300 + b"\n")

    threads = [threading.Thread(target=write, args=(t,), daemon=True) for t in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close(10)
    found = bodies(tmp_path)
    assert len(found) == 1600
    for t in range(8):
        mine = [line for line in found if line.startswith(b"%d:" % t)]
        assert mine == [b"%d:%d:" % (t, n) + b"y" * 300 for n in range(200)]


@pytest.mark.parametrize("after", [200, 2000, 9000])
def test_killed_writer_loses_and_tears_no_line(tmp_path, after):
    """After SIGKILL and repair each acknowledged line is there once, in order."""
    command = [sys.executable, "-m", "tests.spool.programs.endless_writer", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        acknowledged = next(int(line) for line in process.stdout if int(line) >= after)
        process.kill()
        rest = process.stdout.read().split(b"\n")
    acknowledged = max([acknowledged, *(int(n) for n in rest[:-1] if n)])
    (writer,) = layout.journals(tmp_path)
    assert segments.living_writers(tmp_path) == set()
    for _ in range(2):  # a second repair changes nothing
        segments.repair(tmp_path, writer)
        numbers = [int(line.split(b":")[0]) for line in bodies(tmp_path)]
        assert numbers in (list(range(acknowledged + 1)), list(range(acknowledged + 2)))
    state = journal.read_state(tmp_path / f"{writer}.journal")
    assert state.recorded == len(numbers)


@pytest.mark.parametrize("given", ["whole", "in pieces"])
@pytest.mark.parametrize("point", ["before publishing", "while publishing", "in write(2)"])
def test_a_writer_killed_in_the_middle_of_a_write_loses_and_tears_nothing(tmp_path, point, given):
    """The writer is killed before, within and after the length, or within a write(2)."""
    command = [sys.executable, "-m", "tests.spool.programs.die_in_write", str(tmp_path), point, given]
    ran = subprocess.run(command, check=False)
    assert ran.returncode == -signal.SIGKILL
    (writer,) = layout.journals(tmp_path)
    segments.repair(tmp_path, writer)
    numbers = [int(line.split(b":")[0]) for line in bodies(tmp_path)]
    assert numbers == list(range(50 if point == "in write(2)" else 49))
    assert journal.read_state(tmp_path / f"{writer}.journal").recorded == len(numbers)


def test_a_torn_last_line_is_cut_off(tmp_path):
    """Half a line that no journal completes is not left for readers."""
    writer = writer_in(tmp_path)
    assert writer.write(b"whole\n")
    writer.close(10)
    (name,) = layout.segments(tmp_path)
    with (tmp_path / name.file).open("ab") as file:
        file.write(b'{"torn')
    segments.repair(tmp_path, writer.id)
    assert bodies(tmp_path) == [b"whole"]


def test_writer_is_alive_while_it_holds_its_lock(tmp_path):
    """The lock ends with the process, and when the writer closes."""
    writer = writer_in(tmp_path)
    assert segments.living_writers(tmp_path) == {writer.id}
    writer.close(10)
    assert segments.living_writers(tmp_path) == set()


def test_writer_that_starts_slowly_is_alive(tmp_path, monkeypatch):
    """A writer counts as alive from its first file on, whatever the clock says."""
    seen = []

    class Table(caller.RootTable):
        def __init__(self, path):
            (found,) = layout.journals(tmp_path)
            os.utime(tmp_path / f"{found}.journal", (0, 0))  # the clock was set, or years have passed
            seen.append(segments.living_writers(tmp_path) == {found})
            super().__init__(path)

    monkeypatch.setattr(caller, "RootTable", Table)
    writer_in(tmp_path).close(10)
    assert seen == [True]
    assert segments.living_writers(tmp_path) == set()


def test_writer_whose_segment_was_removed_is_alive(tmp_path):
    """Repair of dead writers never cuts a file that a process has mapped."""
    writer = writer_in(tmp_path)
    (name,) = layout.segments(tmp_path)
    (tmp_path / name.file).unlink()
    assert segments.living_writers(tmp_path) == {writer.id}
    segments.discard_buffers(tmp_path, writer.id)
    for number in range(100):
        assert writer.write(b"%d" % number + b"x" * 10_000 + b"\n")
    writer.close(10)
    assert [line[:2] for line in bodies(tmp_path)][-1] == b"99"


def test_forked_child_releases_its_parents_lock(tmp_path):
    """After fork the child neither writes to the parent's segment nor holds its lock."""
    command = [sys.executable, "-m", "tests.spool.programs.fork_and_die"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    with process.stdout:
        child_writer = process.stdout.readline().decode().strip()
    process.wait()
    try:
        (node_dir,) = {path.parent for path in (tmp_path / "spool").rglob("*.journal")}
        # A forwarder that starts probes the dead writer's lock, and holds it for a moment.
        wait_for(lambda: segments.living_writers(node_dir) == {child_writer}, what="the release of the lock")
        assert len(layout.journals(node_dir)) == 2
    finally:
        os.kill(int(child_writer.split("-")[0]), signal.SIGKILL)


def test_full_disk_drops_spans_until_it_has_space(tmp_path, monkeypatch, caplog):
    """Spans beyond the ring are counted as dropped; then recording goes on."""
    real_write, full = os.write, threading.Event()

    def write(descriptor, data):
        if full.is_set():
            raise OSError(28, "No space left on device")
        return real_write(descriptor, data)

    monkeypatch.setattr(flusher.os, "write", write)
    set_waits(monkeypatch, write_retry=0.01)
    writer = writer_in(tmp_path, journal_bytes=4096)
    full.set()
    kept = [n for n in range(100) if writer.write(b"%d" % n + b"x" * 200 + b"\n")]
    assert 0 < len(kept) < 30
    full.clear()
    assert writer.flush(10)
    assert writer.write(b"later\n")
    writer.close(10)
    assert [line[:1] for line in bodies(tmp_path)][-1] == b"l"
    assert len(bodies(tmp_path)) == len(kept) + 1
    state = journal.read_state(tmp_path / f"{writer.id}.journal")
    assert sum(state.drops.values()) == 100 - len(kept)
    assert len([r for r in caplog.records if "No space left" in r.message]) == 1


def test_a_stuck_disk_makes_nobody_wait_twice(tmp_path, monkeypatch):
    """A write that hangs costs one bounded wait.

    Further spans are dropped at once, and none raises.
    """
    release, sleep, waits = threading.Event(), Patience.sleep, set()
    real_write = os.write

    def write(descriptor, data):
        release.wait(600)
        return real_write(descriptor, data)

    def counted(self):
        waits.add(self)
        return sleep(self)

    monkeypatch.setattr(flusher.os, "write", write)
    monkeypatch.setattr(Patience, "sleep", counted)
    writer = writer_in(tmp_path, journal_bytes=4096)
    for _ in range(50):
        writer.write(b"x" * 500 + b"\n")
    assert len(waits) == 1
    assert not release.is_set()
    release.set()
    writer.close(10)


@pytest.mark.parametrize(
    ("progress", "checks"),
    [(itertools.repeat(7), flusher.MIN_CHECKS), (itertools.count(), flusher.MAX_CHECKS)],
    ids=["still", "moving"],
)
def test_flusher_that_stands_still_is_given_up_before_one_that_moves(progress, checks, monkeypatch):
    """A caller checks a few times without progress, and a bounded number of times with it."""
    set_waits(monkeypatch, journal_room=0)
    monkeypatch.setattr(flusher, "CHECK_INTERVAL", 0)
    flushing = type("Flushing", (), {"progress": PropertyMock(side_effect=progress)})
    assert sum(1 for _ in iter(Patience(flushing()).sleep, False)) == checks - 1


def test_closed_writer_writes_nothing(tmp_path):
    """A span that ends after shutdown() raises nothing and is not recorded."""
    writer = writer_in(tmp_path)
    writer.started()
    assert writer.write(b"in time\n")
    writer.close(10)
    assert not writer.write(b"late\n")
    assert bodies(tmp_path) == [b"in time"]
    assert sum(journal.read_state(tmp_path / f"{writer.id}.journal").drops.values()) == 0


STEPS = st.text(max_size=70) | st.integers().map(str)


@given(drops=st.lists(st.tuples(STEPS, st.booleans(), st.sampled_from(journal.DROP_REASONS)), max_size=40))
def test_dropped_spans_are_counted_by_step(drops, tmp_path_factory):
    """Each reason is counted under its step, on disk at once.

    Rows add up to the total.
    """
    path = tmp_path_factory.mktemp("drops") / "1.journal"
    written = journal.Journal(path, 4096)
    for drop in drops:
        written.drop(*drop)
    state = journal.read_state(path)
    expected: dict[tuple[str, bool], Counter[str]] = {}
    for step, validate, reason in drops:
        fits = len(step.encode()) <= 62
        key = (step, validate) if fits else (journal.OTHER_STEPS, False)
        expected.setdefault(key, Counter())[reason] += 1
    found = {key: Counter(reasons) for key, reasons in state.drops_of_steps.items()}
    assert found == expected
    assert Counter(state.drops) == Counter(reason for _, _, reason in drops)


def test_drops_of_too_many_steps_share_one_row(tmp_path):
    """Drops of steps without a row of their own are counted as of "other steps"."""
    written = journal.Journal(tmp_path / "1.journal", 4096)
    for step in range(1000):
        written.drop(f"{step}", False, "disk")
    state = journal.read_state(tmp_path / "1.journal")
    assert len(state.drops_of_steps) == journal.STEP_ROWS
    assert state.drops_of_steps["94", False]["disk"] == 1
    assert state.drops_of_steps[journal.OTHER_STEPS, False]["disk"] == 1000 - 95
    assert state.drops["disk"] == 1000


def test_length_and_counts_of_a_journal_are_of_one_moment(tmp_path):
    """Length and counts fit together at any read and after any kill."""
    for attempt in range(30):
        path = tmp_path / f"{attempt}.journal"
        command = [sys.executable, "-m", "tests.spool.programs.endless_journal", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            seen = [journal.read_state(path) for _ in range(50)]
            process.kill()
        for state in [*seen, journal.read_state(path)]:
            assert state.recorded > 0
            assert (state.written, state.started) == (10 * state.recorded, 7)
