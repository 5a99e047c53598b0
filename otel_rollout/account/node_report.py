"""Take the delivery report of a node directory from what is on disk."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from otel_rollout.account.report import DeliveryCount, ExporterCount, Report, StepCount
from otel_rollout.base.interrupts import pass_on
from otel_rollout.otlp.scan import StepKey, step_of
from otel_rollout.spool import journal, layout, segments
from otel_rollout.spool.private_files import ForeignFileError, check_private, open_private
from otel_rollout.spool.root_table import read_open

if TYPE_CHECKING:
    from otel_rollout.account.ledger import LedgerState
    from otel_rollout.settings import Settings

_POLL_INTERVAL = 0.05
_START_INTERVAL = 2.0
_STEADY_ATTEMPTS = 5
_logger = logging.getLogger("otel_rollout")


def report(node_dir: Path, configured: Settings, at_once: bool = False) -> Report:
    """Take the account of a node directory from what is on disk; an empty one if somebody has removed it.

    Args:
        node_dir: the directory.
        configured: settings of the run.
        at_once: take what is recorded and not delivered as pending, without counting it on disk, where
            there may be gigabytes. What is lost does not show then.
    """
    try:
        return _report(node_dir, configured, at_once)
    except Exception as error:  # noqa: BLE001 - whoever asks goes on, with what is known
        pass_on(error)
        if isinstance(error, FileNotFoundError) and not os.path.isdir(node_dir):
            return Report.empty()
        return Report.unknown(str(node_dir), configured.exporters, _described(node_dir, error))


def _described(node_dir: Path, error: Exception) -> str:
    """What is wrong with a directory, as one sentence that names it."""
    if isinstance(error, ForeignFileError):
        return str(error)
    why = error.strerror if isinstance(error, OSError) else None
    return f"{node_dir} cannot be read: {why or f'{type(error).__name__}: {error}'}"


def delivered(node_dir: Path, configured: Settings) -> dict[str, DeliveryCount]:
    """What the ledger says of each exporter, which is cheap to ask; nothing where it cannot be read."""
    from otel_rollout.account.ledger import read_ledger

    try:
        ledger = read_ledger(node_dir)
    except Exception as error:  # noqa: BLE001 - a reader of metrics asks, and goes on
        pass_on(error)
        return {}
    if ledger.problem is not None:
        return {}
    return {name: ledger.count(name) for name in configured.exporters}


def _report(node_dir: Path, configured: Settings, at_once: bool) -> Report:
    exporters = list(configured.exporters)
    check_private(node_dir, os.lstat(node_dir))
    living = segments.living_writers(node_dir)
    writers = [_account_of(node_dir, writer, writer in living) for writer in layout.journals(node_dir)]
    dropped: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for account in writers:
        dropped.update(account.dropped)
        left_out.update(account.left_out)
    recorded = sum(account.recorded for account in writers)
    ledger, pending = (
        _ledger_and_rest(node_dir, exporters, recorded)
        if at_once
        else _ledger_and_pending(node_dir, exporters)
    )
    return Report(
        started=sum(account.started for account in writers),
        recorded=recorded,
        unfinished=sum(account.unfinished for account in writers),
        dropped={reason: n for reason, n in dropped.items() if n},
        left_out={reason: n for reason, n in left_out.items() if n},
        groups_kept={reason: n for (kept, reason), n in ledger.groups.items() if kept},
        groups_left_out={reason: n for (kept, reason), n in ledger.groups.items() if not kept},
        exporters={name: _exporter_count(name, ledger, pending[name]) for name in exporters},
        place=str(node_dir),
        count_steps=lambda: _steps_or_nothing(node_dir, exporters),
    )


def _ledger_and_rest(
    node_dir: Path, exporters: Iterable[str], recorded: int
) -> tuple[LedgerState, dict[str, int]]:
    """What was delivered, and for each exporter how many of the recorded spans were not."""
    from otel_rollout.account.ledger import read_ledger

    ledger = read_ledger(node_dir)
    return ledger, {name: max(0, recorded - ledger.done(name)) for name in exporters}


def _ledger_and_pending(node_dir: Path, exporters: Iterable[str]) -> tuple[LedgerState, dict[str, int]]:
    """What was delivered, and for each exporter how many lines were not, at one moment.

    What is delivered while we count would count twice, and a segment that is removed meanwhile not at all.
    """
    from otel_rollout.account.ledger import read_ledger

    ledger = read_ledger(node_dir)
    for _ in range(_STEADY_ATTEMPTS):
        pending = {
            name: sum(chunk.count(b"\n") for chunk in _pending(node_dir, ledger.cursors.get(name, {})))
            for name in exporters
        }
        before, ledger = ledger, read_ledger(node_dir)
        if ledger.cursors == before.cursors:
            break
    return before, pending


@dataclass(frozen=True)
class _Account:
    """What one writer has done."""

    started: int = 0
    recorded: int = 0
    unfinished: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def open(self) -> int:
        """Spans begun that may still end."""
        return self.started - self.recorded - self.unfinished - sum(self.dropped.values())


def _account_of(node_dir: Path, writer: str, is_alive: bool) -> _Account:
    state = journal.read_state(node_dir / (writer + layout.JOURNAL_SUFFIX))
    if state is None:
        return _Account()
    if is_alive:
        return _Account(state.started, state.recorded, 0, state.drops, state.skips)
    closing = node_dir / layout.SegmentName(writer, layout.CLOSING_SEQUENCE).file
    recorded = state.recorded + _content(closing).count(b"\n")
    unfinished = state.started - recorded - sum(state.drops.values())
    return _Account(state.started, recorded, unfinished, state.drops, state.skips)


def _content(path: Path) -> bytes:
    """The content of a file; nothing where there is none of this user's."""
    try:
        return layout.read_private(path)
    except (FileNotFoundError, ForeignFileError):
        return b""


def _exporter_count(exporter: str, ledger: LedgerState, pending: int) -> ExporterCount:
    from otel_rollout.exporting.api import FailureKind

    failure = ledger.failures.get(exporter)
    _, not_linked = ledger.links.get(exporter, ("", None))
    return ExporterCount(
        **ledger.count(exporter)._asdict(),
        pending=pending,
        problem=ledger.problem or (failure.message if failure else not_linked),
        is_refused=failure is not None and failure.kind is FailureKind.REFUSED,
        destination=ledger.destinations.get(exporter, ""),
    )


def _pending(node_dir: Path, cursors: Mapping[str, int]) -> Iterator[bytes]:
    """What lies beyond an exporter's cursors: in the segments, and in the journals of their writers."""
    for name in layout.segments(node_dir):
        size = cursors.get(name.stem, 0)
        try:
            with open(node_dir / name.file, "rb", opener=open_private) as file:
                file.seek(size)
                while chunk := file.read(1 << 20):
                    size += len(chunk)
                    yield chunk
        except OSError:  # everybody is done with it; or nobody can read it
            continue
        yield _owed(node_dir, name, size)


def _owed(node_dir: Path, name: layout.SegmentName, size: int) -> bytes:
    """What the journal of its writer has beyond ``size`` bytes of a segment, if it is the writer's last."""
    path = node_dir / (name.writer + layout.JOURNAL_SUFFIX)
    state = journal.read_state(path)
    return journal.owed_bytes(path, state, size) if state and state.sequence == name.sequence else b""


def _steps_or_nothing(node_dir: Path, exporters: list[str]) -> Mapping[StepKey, StepCount]:
    """The account per step; nothing, and a warning, where it can be read no more."""
    try:
        return count_steps(node_dir, exporters)
    except Exception as error:  # noqa: BLE001 - it is asked for later than the account was taken
        pass_on(error)
        _logger.warning("otel-rollout: steps are not known: %s", _described(node_dir, error))
        return {}


def count_steps(node_dir: Path, exporters: list[str]) -> Mapping[StepKey, StepCount]:
    """The account per step: from segments, ledger, journals and tables of open trajectories."""
    from otel_rollout.account.ledger import Tally, read_ledger

    ledger = read_ledger(node_dir)
    counts: dict[StepKey, StepCount] = {}
    for exporter in exporters:
        waiting: Counter[StepKey] = Counter()
        for line in _lines(_pending(node_dir, ledger.cursors.get(exporter, {}))):
            waiting[step_of(line)] += 1
        done = ledger.steps.get(exporter, {})
        for key in {*done, *waiting}:
            tally = done.get(key, Tally())
            recorded = tally.done + waiting[key]
            known = counts.get(key)
            if known is None or tally.delivered < known.delivered:
                counts[key] = StepCount(recorded, tally.delivered, tally.rejected, tally.left_out)
    for key, dropped in _dropped_by_step(node_dir).items():
        counts[key] = dataclasses.replace(counts.get(key, StepCount()), dropped=dropped)
    under_way = _under_way_by_step(node_dir)
    for key in under_way.open | under_way.unfinished:
        counts[key] = dataclasses.replace(
            counts.get(key, StepCount()), open=under_way.open[key], unfinished=under_way.unfinished[key]
        )
    return dict(sorted(counts.items()))


class _UnderWay(NamedTuple):
    """Spans begun that have not ended, of processes that live, and of those that do not."""

    open: Counter[StepKey]
    unfinished: Counter[StepKey]


def _under_way_by_step(node_dir: Path) -> _UnderWay:
    found = _UnderWay(Counter(), Counter())
    living = segments.living_writers(node_dir)
    for writer in layout.journals(node_dir):
        account = _account_of(node_dir, writer, writer in living)
        number = account.open + account.unfinished
        if number > 0:
            (found.open if writer in living else found.unfinished).update(_by_step(node_dir, writer, number))
    return found


def _by_step(node_dir: Path, writer: str, number: int) -> Counter[StepKey]:
    """The steps of ``number`` spans under way: of trajectories, and of operations if that can only be one."""

    closing = _content(node_dir / layout.SegmentName(writer, layout.CLOSING_SEQUENCE).file)
    if closing:  # its trajectories were ended; what was under way in them was not
        roots = Counter[StepKey]()
        steps = {step_of(line) for line in closing.splitlines()}
    else:
        roots = Counter(map(step_of, read_open(node_dir / (writer + layout.OPEN_SUFFIX))))
        steps = set(roots)
    within = steps.pop() if len(steps) == 1 else StepKey(journal.OTHER_STEPS, False)
    roots[within] += max(0, number - roots.total())
    return roots


def _dropped_by_step(node_dir: Path) -> dict[StepKey, dict[str, int]]:
    found: dict[StepKey, Counter[str]] = {}
    for writer in layout.journals(node_dir):
        state = journal.read_state(node_dir / (writer + layout.JOURNAL_SUFFIX))
        for (step, validate), drops in state.drops_of_steps.items() if state else ():
            found.setdefault(StepKey(step, validate), Counter()).update(drops)
    return {key: {reason: n for reason, n in drops.items() if n} for key, drops in found.items()}


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a stream, one at a time: what is pending may be half a disk."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield b"".join((*parts, line))
            parts, size = [], 0
        if size < segments.MAX_LINE_BYTES:  # no line; but there is an end to everything
            parts.append(rest)
            size += len(rest)
