"""Make the delivery report of a node directory from its files."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from otel_rollout.account.ledger_reader import LedgerState, Tally, read_ledger
from otel_rollout.account.report import (
    ExporterCount,
    Report,
    StepCount,
    bounded_scopes,
    summed,
)
from otel_rollout.base.errors import logger, pass_on
from otel_rollout.otlp.scan import StepKey, step_of
from otel_rollout.otlp.score_batch import spans_in, steps_in
from otel_rollout.settings import Settings
from otel_rollout.spool import journal, layout, segments
from otel_rollout.spool.private_files import ForeignFileError, check_private, open_private
from otel_rollout.spool.root_table import read_open
from otel_rollout.spool.segments import place_of

_MAX_COUNTS = 5
"""Maximum counts of pending lines; a count is repeated if cursors moved during it."""


def report(node_dir: Path, configured: Settings, at_once: bool = False) -> Report:
    """Return the report of a node directory; an empty one if it was removed.

    Args:
        node_dir: the node directory.
        configured: settings of the run.
        at_once: whether to count every undelivered span as pending, without reading segments, which may have
            gigabytes. Lost spans are then counted as pending too.
    """
    try:
        return _report(node_dir, configured, at_once)
    except Exception as error:  # noqa: BLE001 - the caller goes on, and finds the error in the report
        pass_on(error)
        if isinstance(error, FileNotFoundError) and not os.path.isdir(node_dir):
            return Report.empty()
        return Report.unknown(str(node_dir), configured.exporters, _described(node_dir, error))


def _described(node_dir: Path, error: Exception) -> str:
    """Describe an error in one sentence that names the directory."""
    if isinstance(error, ForeignFileError):
        return str(error)
    why = error.strerror if isinstance(error, OSError) else None
    return f"{node_dir} cannot be read: {why or f'{type(error).__name__}: {error}'}"


def delivered(node_dir: Path, configured: Settings) -> dict[str, ExporterCount]:
    """Return each exporter's counts from the ledger; empty if it is unreadable."""
    try:
        ledger = read_ledger(node_dir)
    except Exception as error:  # noqa: BLE001 - a reader of metrics goes on without these counts
        pass_on(error)
        return {}
    if ledger.problem is not None:
        return {}
    return {name: ledger.count(name) for name in configured.exporters}


def _report(node_dir: Path, configured: Settings, at_once: bool) -> Report:
    exporters = list(configured.exporters)
    check_private(node_dir, os.lstat(node_dir))
    writers = _writers(node_dir)
    tallies = summed(writer.state.tallies for writer in writers)
    recorded = sum(writer.recorded for writer in writers)
    if at_once:
        ledger = read_ledger(node_dir)
        pending = {name: max(0, recorded - ledger.total(name).done) for name in exporters}
    else:
        ledger, pending = _ledger_and_pending(node_dir, exporters)
    return Report(
        started=sum(writer.state.started for writer in writers),
        recorded=recorded,
        unfinished=sum(writer.not_ended for writer in writers if not writer.is_alive),
        dropped=summed(writer.state.drops for writer in writers),
        sampled_out=summed(writer.state.skips for writer in writers),
        groups_kept={reason: n for (kept, reason), n in ledger.groups.items() if kept},
        groups_sampled_out={reason: n for (kept, reason), n in ledger.groups.items() if not kept},
        exporters={name: ledger.count(name, pending[name]) for name in exporters},
        directory=str(node_dir),
        count_steps=lambda: _steps_or_nothing(node_dir, exporters),
        other_scopes=bounded_scopes(summed(writer.state.other_scopes for writer in writers)),
        trajectories=tallies.get("trajectories", 0),
        operations_outside=tallies.get("operations_outside", 0),
    )


def _ledger_and_pending(node_dir: Path, exporters: Iterable[str]) -> tuple[LedgerState, dict[str, int]]:
    """Read the ledger and count each exporter's pending lines, both as of one moment.

    A line that is delivered during the count would be counted twice, and a line of a segment that is removed
    would not be counted. So the count is repeated until no cursor has moved.
    """
    ledger = read_ledger(node_dir)
    for _ in range(_MAX_COUNTS):
        pending = {
            name: sum(
                max(1, spans_in(line) - passed)
                for line, passed in _pending(node_dir, ledger.cursors.get(name, {}))
            )
            + len(ledger.held.get(name, ()))
            for name in exporters
        }
        before, ledger = ledger, read_ledger(node_dir)
        if ledger.cursors == before.cursors:
            break
    return before, pending


class _Writer(NamedTuple):
    """A writer with its journal's header."""

    name: str
    is_alive: bool
    state: journal.JournalState
    recorded: int

    @property
    def not_ended(self) -> int:
        """Spans that have started and not ended; those of a dead writer never will."""
        return self.state.started - self.recorded - sum(self.state.drops.values())


def _writers(node_dir: Path) -> list[_Writer]:
    living = segments.living_writers(node_dir)
    found = []
    for name in layout.journals(node_dir):
        state = journal.read_state(layout.journal_of(node_dir, name))
        if state is not None:
            closing = layout.SegmentName(name, layout.CLOSING_SEQUENCE).file
            ended = 0 if name in living else _content(node_dir / closing).count(b"\n")
            found.append(_Writer(name, name in living, state, state.recorded + ended))
    return found


def _content(path: Path) -> bytes:
    """Return the content of a file; nothing if it is missing or another user's."""
    try:
        return layout.read_private(path)
    except (FileNotFoundError, ForeignFileError):
        return b""


def _pending(node_dir: Path, cursors: Mapping[str, int]) -> Iterator[tuple[bytes, int]]:
    """Yield the lines that an exporter's cursors have not passed, from segments and journals.

    Each line comes with the number of its spans that the cursor has passed.
    """
    for name in layout.segments(node_dir):
        try:
            begin, passed = place_of(node_dir / name.file, cursors.get(name.stem, 0))
        except OSError:  # it cannot be read
            continue
        for line in _lines(_bytes_from(node_dir, name, begin)):
            yield line, passed
            passed = 0


def _bytes_from(node_dir: Path, name: layout.SegmentName, begin: int) -> Iterator[bytes]:
    """Yield the bytes of a segment from ``begin`` on, and then those that only its writer's journal has."""
    size = begin
    try:
        with open(node_dir / name.file, "rb", opener=open_private) as file:
            file.seek(size)
            while chunk := file.read(1 << 20):
                size += len(chunk)
                yield chunk
    except OSError:  # the segment was removed because all exporters are done, or cannot be read
        return
    yield _owed(node_dir, name, size)


def _owed(node_dir: Path, name: layout.SegmentName, size: int) -> bytes:
    """Return the journal's bytes that follow ``size`` bytes of the last segment."""
    path = layout.journal_of(node_dir, name.writer)
    state = journal.read_state(path)
    return journal.owed_bytes(path, state, size) if state and state.sequence == name.sequence else b""


def _steps_or_nothing(node_dir: Path, exporters: list[str]) -> Mapping[StepKey, StepCount]:
    """Return the counts per step; log a warning if they cannot be read."""
    try:
        return count_steps(node_dir, exporters)
    except Exception as error:  # noqa: BLE001 - the directory may be gone since the report was made
        pass_on(error)
        logger.warning("otel-rollout: counts per step are not known: %s", _described(node_dir, error))
        return {}


def count_steps(node_dir: Path, exporters: list[str]) -> Mapping[StepKey, StepCount]:
    """Count spans per step, from segments, ledger, journals and root tables."""
    ledger = read_ledger(node_dir)
    counts: dict[StepKey, StepCount] = {}
    for exporter in exporters:
        pending: Counter[StepKey] = Counter(ledger.held.get(exporter, ()))
        for line, passed in _pending(node_dir, ledger.cursors.get(exporter, {})):
            pending.update(steps_in(line, passed))
        done = ledger.steps.get(exporter, {})
        for key in {*done, *pending}:
            tally = done.get(key, Tally())
            recorded = tally.done + pending[key]
            known = counts.get(key)
            if known is None or tally.delivered < known.delivered:
                counts[key] = StepCount(recorded, tally.delivered, tally.rejected, tally.sampled_out)
    dropped: dict[StepKey, Counter[str]] = {}
    not_ended: dict[bool, Counter[StepKey]] = {True: Counter(), False: Counter()}
    for writer in _writers(node_dir):
        for (step, validate), drops in writer.state.drops_of_steps.items():
            dropped.setdefault(StepKey(step, validate), Counter()).update(drops)
        not_ended[writer.is_alive].update(_by_step(node_dir, writer))
    for key in {*dropped, *not_ended[True], *not_ended[False]}:
        counts[key] = dataclasses.replace(
            counts.get(key, StepCount()),
            dropped=summed([dropped.get(key, {})]),
            open=not_ended[True][key],
            unfinished=not_ended[False][key],
        )
    return dict(sorted(counts.items()))


def _by_step(node_dir: Path, writer: _Writer) -> Counter[StepKey]:
    """Attribute the spans of a writer that have not ended to steps.

    The root table has the trajectories with their steps. Operations count for the trajectories' step if all
    trajectories have the same step, else for "other steps".
    """
    if writer.not_ended <= 0:
        return Counter()
    closing = _content(node_dir / layout.SegmentName(writer.name, layout.CLOSING_SEQUENCE).file)
    if closing:  # the forwarder has ended the trajectories, but not their operations
        roots = Counter[StepKey]()
        steps = {step_of(line) for line in closing.splitlines()}
    else:
        roots = Counter(map(step_of, read_open(node_dir / (writer.name + layout.OPEN_SUFFIX))))
        steps = set(roots)
    of_operations = steps.pop() if len(steps) == 1 else StepKey(journal.OTHER_STEPS, False)
    roots[of_operations] += max(0, writer.not_ended - roots.total())
    return roots


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Split a stream into lines, one at a time: pending spans may take gigabytes."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield b"".join((*parts, line))
            parts, size = [], 0
        if size < segments.MAX_LINE_BYTES:  # the rest of a longer line is skipped: it is no span
            parts.append(rest)
            size += len(rest)
