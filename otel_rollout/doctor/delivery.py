"""Check that recorded spans are being delivered, for a probe that runs every few seconds.

The checks read ledgers, headers of journals, sizes of segments, and a few bytes of each segment. They write,
start, repair and deliver nothing. The middle of a segment is not read: its damage becomes visible in the
dead-letter file, when the forwarder reaches it. Whatever a spool holds, the answer is a list of findings.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from rich.filesize import decimal

from otel_rollout.account.ledger_reader import read_ledger
from otel_rollout.account.report import summed
from otel_rollout.base.waits import waits
from otel_rollout.deliver.dead_letters import rejected_file
from otel_rollout.doctor.diagnosis import DoctorCheck, DoctorFinding
from otel_rollout.doctor.filesystem import problem_of, unreadable_directories
from otel_rollout.exporting.entry_points import other_target
from otel_rollout.otlp.scan import LINE_HEAD, end_time_of
from otel_rollout.spool import journal, layout, segments
from otel_rollout.spool.locks import LOCK_FILE
from otel_rollout.spool.private_files import open_private
from otel_rollout.spool.segments import place_of

CHECKS: Final = ("spool", "damaged", "forwarder", "backlog", "refused", "dropped", "rejected", "disk")
"""Ids of the checks."""
_MAX_RUNS: Final = 64
"""Maximum node directories that are checked, the newest ones; a spool may hold years of them."""
_ATTEMPTS: Final = 3
"""Maximum attempts to check a node directory; a forwarder may remove a delivered segment in between."""
_LINE_BYTES: Final = 1 << 16
"""Bytes read of a line; its time precedes its attributes."""
_DAMAGE_ADVICE: Final = "What can be read is delivered; remove the file when nothing more is to come of it."
_FULL: Final = 0.9
"""Share of a run's size limit above which its segments are a finding."""


@dataclass(frozen=True)
class AlarmLimits:
    """Limits of a healthy spool.

    Attributes:
        max_age: maximum age of the oldest pending span, in seconds.
        max_bytes: maximum bytes pending for one exporter.
        min_free: minimum free space of the spool's file system, in per cent.
        spool_limit: maximum bytes of segments that a run may have; 0 if its processes chose the limit
            themselves.
    """

    max_age: float
    max_bytes: float
    min_free: float
    spool_limit: int


def check_delivery(spool: Path, limits: AlarmLimits) -> tuple[list[DoctorFinding], int]:
    """Check the newest runs in a spool, run or node directory.

    Returns:
        What was found, and the number of node directories that were checked.
    """
    try:
        if problem := problem_of(spool):
            return [DoctorCheck("spool").fail(problem)], 0
        if not os.path.lexists(spool):
            return [], 0
        found = [DoctorCheck("spool").fail(sentence) for sentence in unreadable_directories(spool)]
        node_dirs = layout.node_directories(spool)[-_MAX_RUNS:]
        found += _disk(spool, limits)
    except OSError as error:
        return [DoctorCheck("spool").fail(f"{spool} cannot be read: {error.strerror or error}")], 0
    for node_dir in reversed(node_dirs):
        found += _guarded(node_dir, limits)
    return found, len(node_dirs)


def _guarded(node_dir: Path, limits: AlarmLimits) -> list[DoctorFinding]:
    """Check a node directory; what cannot be read is a finding."""
    problem: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            return [*_Node(node_dir).findings(limits)]
        except FileNotFoundError as error:
            if not os.path.isdir(node_dir):  # removed just now
                return []
            problem = error
        except Exception as error:  # noqa: BLE001 - a spool may hold anything
            problem = error
            break
    why = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
    return [DoctorCheck("spool").fail(f"{node_dir} cannot be read: {why}")]


def _disk(spool: Path, limits: AlarmLimits) -> Iterator[DoctorFinding]:
    """Check the free space of the spool's file system."""
    free, state = layout.free_bytes(spool), os.statvfs(spool)
    if free is None:
        return
    share = 100 * free / (state.f_frsize * state.f_blocks)
    if share < limits.min_free:
        yield DoctorCheck("disk").fail(
            f"{spool} has {decimal(free)} ({share:.1f}%) left",
            "Free disk space: spans that do not fit are dropped.",
        )


class _JournalFile(NamedTuple):
    """A journal's header, and the size of its ring; a journal that is done with has no ring."""

    path: Path
    state: journal.JournalState | None
    ring: int

    @classmethod
    def read(cls, path: Path) -> _JournalFile:
        """Read a journal's header."""
        state = journal.read_state(path)
        return cls(path, state, max(0, os.lstat(path).st_size - journal.HEADER_BYTES))


class _Node:
    """The state of a node directory, read once."""

    def __init__(self, node_dir: Path) -> None:
        self._node_dir = node_dir
        manifest = layout.read_manifest(node_dir)
        self._exporters = manifest.exporters if manifest else ()
        self._began = (node_dir / layout.MANIFEST).stat().st_mtime
        self._ledger = read_ledger(node_dir, waits().probed_ledger, writes_nothing=True)
        self._living = segments.living_writers(node_dir)
        self._journals = {
            writer: _JournalFile.read(layout.journal_of(node_dir, writer))
            for writer in layout.journals(node_dir)
        }
        self._on_disk = dict(self._existing(layout.segments(node_dir)))
        self._sizes = {name: self._size_of(name, size) for name, size in self._on_disk.items()}

    def findings(self, limits: AlarmLimits) -> Iterator[DoctorFinding]:
        """Yield what is wrong."""
        if not self._exporters:
            yield DoctorCheck("spool").fail(f"{self._node_dir / layout.MANIFEST} names no exporter")
        if self._ledger.problem:
            yield DoctorCheck("spool").fail(self._ledger.problem)
        has_forwarder = segments.is_being_written(self._node_dir / LOCK_FILE)
        for exporter in self._exporters:
            yield from self._delivery(exporter, has_forwarder, limits)
            yield from self._rejected(exporter)
        yield from self._damage()
        yield from self._dropped()
        yield from self._limit(limits)

    def _damage(self) -> Iterator[DoctorFinding]:
        """Check the files of writers that write no more."""
        for writer, file in self._journals.items():
            if writer not in self._living:
                sizes = {name: size for name, size in self._on_disk.items() if name.writer == writer}
                for found in _journal_damage(file, sizes):
                    yield DoctorCheck("damaged").fail(found, _DAMAGE_ADVICE)
        for name, size in self._on_disk.items():
            cursor = min(
                (self._ledger.cursors.get(exporter, {}).get(name.stem, 0) for exporter in self._exporters),
                default=size,
            )
            damage = _segment_damage(self._node_dir / name.file, size, cursor, self._is_complete(name))
            if damage and not self._ledger.problem:  # without the cursors, nobody knows what is pending
                yield DoctorCheck("damaged").fail(damage, _DAMAGE_ADVICE)

    def _is_complete(self, name: layout.SegmentName) -> bool:
        """Return whether a segment's writer has begun another segment since."""
        file = self._journals.get(name.writer)
        return file is not None and file.state is not None and name.sequence < file.state.sequence

    def _delivery(self, exporter: str, has_forwarder: bool, limits: AlarmLimits) -> Iterator[DoctorFinding]:
        """Check an exporter's pending spans."""
        pending, age = self._backlog(self._ledger.cursors.get(exporter, {}))
        if not pending:
            return
        failure = self._ledger.failures.get(exporter)
        what = f"{decimal(pending)} pending for {exporter} in {self._node_dir}, the oldest for {age:.0f} s"
        why = f" ({failure.message})" if failure else ""
        is_refused = self._ledger.is_refused(exporter)
        # Where this one was refused, another forwarder would be, too.
        if not has_forwarder and age > waits().missing_forwarder and not is_refused:
            advice = f"Deliver with: {self._forward(exporter)}."
            yield DoctorCheck("forwarder").fail(f"no forwarder runs: {what}", advice)
        if age > limits.max_age or pending > limits.max_bytes:
            yield DoctorCheck("backlog").fail(f"{what}{why}")
        if failure and is_refused:
            advice = f"Correct this, and deliver with: {self._forward(exporter)}."
            yield DoctorCheck("refused").fail(
                f"{exporter} takes nothing from {self._node_dir}: {failure.message}", advice
            )

    def _forward(self, exporter: str) -> str:
        return f"`otel-rollout forward {other_target(exporter)}--spool {self._node_dir}`"

    def _backlog(self, cursors: Mapping[str, int]) -> tuple[int, float]:
        """Return the bytes behind an exporter's cursors, and the age of the oldest in seconds."""
        pending, oldest = 0, time.time()
        writers: set[str] = set()
        for name, size in self._sizes.items():  # each writer's oldest first
            position = cursors.get(name.stem, 0)
            if size <= position:
                continue
            pending += size - position
            if name.writer not in writers:
                writers.add(name.writer)
                oldest = min(oldest, self._time_at(name, position))
        return pending, max(0.0, time.time() - max(oldest, self._began))

    def _time_at(self, name: layout.SegmentName, position: int) -> float:
        """Return when the line at a position was recorded; if unknown, when the segment last changed."""
        path = self._node_dir / name.file
        begin, _ = place_of(path, position)
        with open(path, "rb", buffering=0, opener=open_private) as file:
            ended = end_time_of(os.pread(file.fileno(), _LINE_BYTES, begin))
            return ended / 1e9 if ended is not None else os.fstat(file.fileno()).st_mtime

    def _existing(self, names: list[layout.SegmentName]) -> Iterator[tuple[layout.SegmentName, int]]:
        """Yield the segments with their sizes."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # delivered just now
                yield name, os.lstat(self._node_dir / name.file).st_size

    def _size_of(self, name: layout.SegmentName, size: int) -> int:
        """Return the size that a segment has, or will have when its dead writer's journal is used."""
        file = self._journals.get(name.writer)
        if file is None or file.state is None or name.writer in self._living:
            return size
        is_last = file.state.sequence == name.sequence
        return size + (len(journal.owed_bytes(file.path, file.state, size)) if is_last else 0)

    def _rejected(self, exporter: str) -> Iterator[DoctorFinding]:
        """Check for a dead-letter file: a person removes it after its spans were delivered or given up."""
        path = rejected_file(self._node_dir, exporter)
        if os.path.lexists(path) and os.lstat(path).st_size:
            advice = (
                f"Correct the cause, run `otel-rollout replay {path} --to {exporter}`, and remove the file."
            )
            yield DoctorCheck("rejected").fail(f"{exporter} rejected spans, with reasons in {path}", advice)

    def _dropped(self) -> Iterator[DoctorFinding]:
        """Check for dropped spans while the run records; afterwards, nobody can act on them."""
        dropped = summed(file.state.drops for file in self._journals.values() if file.state)
        reasons = ", ".join(f"{number} {reason}" for reason, number in dropped.items())
        if reasons and self._living:
            yield DoctorCheck("dropped").fail(f"spans were not recorded in {self._node_dir}: {reasons}")

    def _limit(self, limits: AlarmLimits) -> Iterator[DoctorFinding]:
        """Check a recording run's segments against its limit."""
        used = sum(self._sizes.values())
        limit = limits.spool_limit or layout.default_limit(self._node_dir)
        if self._living and used > _FULL * limit:
            yield DoctorCheck("disk").fail(
                f"{self._node_dir} has {decimal(used)} of its limit of {decimal(limit)}",
                "Deliver its spans, or raise OTEL_ROLLOUT_SPOOL_LIMIT: spans beyond it are dropped.",
            )


def _journal_damage(file: _JournalFile, sizes: Mapping[layout.SegmentName, int]) -> Iterator[str]:
    """Yield what is wrong with the journal of a dead writer.

    Args:
        file: the journal, read before the sizes: a forwarder completes segments and then removes the ring.
        sizes: sizes of the writer's segments.
    """
    state = file.state
    if state is None:
        if any(sizes.values()) or _has_content(file.path):  # else its process died while it made the file
            yield f"{file.path} is no journal that this version can read"
    elif state.recorded > state.started or state.base > state.written:
        yield f"the counts in {file.path} contradict each other"
    else:
        for name, size in sizes.items():
            lacking = state.written - state.base - size
            if name.sequence == state.sequence and lacking > file.ring:
                yield f"{file.path.with_name(name.file)} lacks {lacking} bytes that its journal does not hold"


def _segment_damage(path: Path, size: int, cursor: int, is_complete: bool) -> str | None:
    """Return what is wrong with a segment.

    Args:
        path: the segment.
        size: its size.
        cursor: position of the exporter that is furthest behind.
        is_complete: whether its writer has begun another segment since.
    """
    if size < cursor:
        return f"{path} has {size} bytes, fewer than the {cursor} that were delivered"
    if size == cursor:
        return None
    begin, _ = place_of(path, cursor)
    with open(path, "rb", buffering=0, opener=open_private) as file:
        head = os.pread(file.fileno(), len(LINE_HEAD), begin)
        last = os.pread(file.fileno(), 1, size - 1)
    if not LINE_HEAD.startswith(head):  # a flush may have ended within the first bytes
        return f"{path} has no span at byte {begin}"
    return f"{path} ends within a span" if is_complete and last != b"\n" else None


def _has_content(path: Path) -> bool:
    with open(path, "rb", buffering=0, opener=open_private) as file:
        return any(file.read(journal.HEADER_BYTES))
