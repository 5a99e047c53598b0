"""The account: what was started, recorded, dropped, and for each exporter delivered and still to come.

The rows add up: started = recorded + dropped + open + unfinished, and for each exporter
recorded = delivered + rejected + left out + pending + lost. ``lost`` is not a remainder by definition:
pending spans are counted on disk, so a span that was acknowledged and is nowhere shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from otel_rollout.otlp.scan import StepKey


class DeliveryCount(NamedTuple):
    """What the forwarder counts for one exporter; see :class:`ExporterCount`."""

    delivered: int
    rejected: int
    left_out: int
    retried: int


@dataclass(frozen=True)
class ExporterCount:
    """What became of the recorded spans at one exporter.

    Attributes:
        delivered: spans the target has acknowledged.
        rejected: spans the target refuses for good; they lie in ``rejected.<exporter>.jsonl``.
        pending: spans that lie on disk and wait.
        retried: times that a batch had to be sent again, because the target did not take it.
        left_out: spans of groups that are not delivered, because of their outcome.
        problem: why nothing is delivered at present, if so.
        is_refused: whether nothing will be delivered until a person has corrected the problem.
        destination: where to look at what was delivered, without credentials; empty while that is not known.
    """

    delivered: int = 0
    rejected: int = 0
    pending: int = 0
    retried: int = 0
    left_out: int = 0
    problem: str | None = None
    is_refused: bool = False
    destination: str = field(default="", compare=False)

    @classmethod
    def merged(cls, counts: Sequence[ExporterCount]) -> ExporterCount:
        """The counts of several machines as one."""
        problems = [count.problem for count in counts if count.problem]
        return cls(
            delivered=sum(count.delivered for count in counts),
            rejected=sum(count.rejected for count in counts),
            pending=sum(count.pending for count in counts),
            retried=sum(count.retried for count in counts),
            left_out=sum(count.left_out for count in counts),
            problem="; ".join(dict.fromkeys(problems)) or None,
            is_refused=any(count.is_refused for count in counts),
            destination=next((count.destination for count in counts if count.destination), ""),
        )

    def lost_of(self, recorded: int) -> int:
        """Of ``recorded`` spans, those that nothing is known of: not even that they are on disk."""
        # While processes record, lines counted as pending may be newer than the count of recorded ones.
        return max(0, recorded - self.delivered - self.rejected - self.left_out - self.pending)


@dataclass(frozen=True)
class StepCount:
    """Spans of one step; ``delivered`` and ``rejected`` by the exporter that is furthest behind.

    Attributes:
        recorded: spans that ended and were recorded.
        delivered: of these, what the target has acknowledged.
        rejected: of these, what the target refuses for good.
        left_out: of these, those of groups that are not delivered, because of their outcome.
        dropped: reason → spans that ended and could not be recorded.
        open: spans begun and not ended yet.
        unfinished: spans begun in processes that died before they ended; see :class:`Report`.
    """

    recorded: int = 0
    delivered: int = 0
    rejected: int = 0
    left_out: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    open: int = 0
    unfinished: int = 0

    @property
    def started(self) -> int:
        """Spans begun, of which nothing else is known than what became of them."""
        return self.recorded + sum(self.dropped.values()) + self.open + self.unfinished

    @property
    def pending(self) -> int:
        """Recorded spans that lie on disk and wait."""
        return self.recorded - self.delivered - self.rejected - self.left_out


@dataclass(frozen=True)
class Report:
    """The account of a run, over all its processes, living and dead; of one machine, or of several merged.

    Attributes:
        started: spans begun.
        recorded: spans that ended and lie, or lay, in the spool.
        unfinished: spans begun in processes that died before they ended. Trajectories among those are
            ended by the forwarder, as errors; they count as recorded, not here.
        dropped: reason → spans that ended and could not be recorded.
        left_out: reason → trajectories that were not to be recorded (``trace=False``, sampling).
        groups_kept: reason → groups that are delivered for it, where ``OTEL_ROLLOUT_OUTCOME_KEEP`` decides.
        groups_left_out: reason → groups that are not.
        exporters: name → what became of the recorded spans there.
        place: directory the account was taken from; empty when nothing was recorded.
        problem: why the spool could not be read, if so; then the numbers are what this process knows.
    """

    started: int
    recorded: int
    unfinished: int
    dropped: Mapping[str, int]
    left_out: Mapping[str, int]
    groups_kept: Mapping[str, int]
    groups_left_out: Mapping[str, int]
    exporters: Mapping[str, ExporterCount]
    place: str
    count_steps: Callable[[], Mapping[StepKey, StepCount]] = field(repr=False, compare=False)
    problem: str | None = None

    @classmethod
    def empty(cls) -> Report:
        """The account when tracing is off."""
        return cls(0, 0, 0, {}, {}, {}, {}, {}, "", dict)

    @classmethod
    def unknown(cls, place: str, exporters: Iterable[str], problem: str) -> Report:
        """The account of a directory that cannot be read."""
        nothing = dict.fromkeys(exporters, ExporterCount())
        return cls(0, 0, 0, {}, {}, {}, {}, nothing, place, dict, problem)

    @classmethod
    def merged(cls, reports: Sequence[Report]) -> Report:
        """The account of several machines as one."""
        if len(reports) == 1:
            return reports[0]
        names = {name for report in reports for name in report.exporters}
        return cls(
            started=sum(report.started for report in reports),
            recorded=sum(report.recorded for report in reports),
            unfinished=sum(report.unfinished for report in reports),
            dropped=_sum(report.dropped for report in reports),
            left_out=_sum(report.left_out for report in reports),
            groups_kept=_sum(report.groups_kept for report in reports),
            groups_left_out=_sum(report.groups_left_out for report in reports),
            exporters={
                name: ExporterCount.merged([r.exporters[name] for r in reports if name in r.exporters])
                for name in sorted(names)
            },
            place=", ".join(report.place for report in reports if report.place),
            count_steps=lambda: _merged_steps([report.by_step for report in reports]),
            problem="; ".join(report.problem for report in reports if report.problem) or None,
        )

    @property
    def open(self) -> int:
        """Spans begun and not ended yet."""
        return self.started - self.recorded - self.unfinished - sum(self.dropped.values())

    @property
    def lost(self) -> int:
        """Recorded spans that are neither delivered nor rejected nor on disk, at the worst exporter."""
        return max((e.lost_of(self.recorded) for e in self.exporters.values()), default=0)

    @property
    def undelivered(self) -> int:
        """Spans dropped, rejected or pending: what a person may have to look after."""
        waiting = max((e.rejected + e.pending for e in self.exporters.values()), default=0)
        return waiting + sum(self.dropped.values())

    @cached_property
    def by_step(self) -> Mapping[StepKey, StepCount]:
        """The account per step, read from disk when asked for."""
        return self.count_steps()

    def summary(self) -> str:
        """The account in one line."""
        parts = [f"{self.recorded} spans recorded"]
        if self.problem:
            parts.append(f"({self.problem})")
        for name, count in self.exporters.items():
            parts.append(f"{count.delivered} delivered to {name}, {count.pending} pending")
            if count.rejected:
                parts.append(f"{count.rejected} rejected")
            if count.left_out:
                parts.append(f"{count.left_out} left out")
            if count.problem:
                parts.append(f"({count.problem})")
        for what, counts in (
            ("dropped", self.dropped),
            ("trajectories left out", self.left_out),
            ("groups kept", self.groups_kept),
            ("groups left out", self.groups_left_out),
        ):
            if counts:
                parts.append(f"{what}: {', '.join(f'{n} {reason}' for reason, n in counts.items())}")
        parts.append(f"lost: {self.lost}")
        if any(count.pending for count in self.exporters.values()):
            parts.append(f"pending spans are kept on disk in {self.place} until they are delivered")
        return "; ".join(parts)


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def _merged_steps(steps: Sequence[Mapping[StepKey, StepCount]]) -> dict[StepKey, StepCount]:
    merged: dict[StepKey, StepCount] = {}
    for of_one in steps:
        for key, count in of_one.items():
            known = merged.get(key, StepCount())
            merged[key] = StepCount(
                known.recorded + count.recorded,
                known.delivered + count.delivered,
                known.rejected + count.rejected,
                known.left_out + count.left_out,
                _sum([known.dropped, count.dropped]),
                known.open + count.open,
                known.unfinished + count.unfinished,
            )
    return dict(sorted(merged.items()))
