"""Define the delivery report: counts of recorded spans, and of delivered ones.

The counts add up: started = recorded + dropped + open + unfinished, and for each exporter
recorded = delivered + rejected + sampled out + pending + lost. Pending spans are counted on disk, so a
recorded span that is in no other count shows as ``lost``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from otel_rollout.base import semconv
from otel_rollout.otlp.scan import StepKey
from otel_rollout.spool.scope_rows import OTHER_SCOPES, SCOPE_ROWS


def said_of_operations_outside(number: int) -> str:
    """Return a sentence on operations that belong to no trajectory, without its full stop."""
    belong = "operation belongs" if number == 1 else "operations belong"
    return f"{number:,} {belong} to no trajectory: docs/recording.md says why"


@dataclass(frozen=True)
class ExporterCount:
    """Counts of the recorded spans at one exporter, by result.

    Attributes:
        delivered: spans that the target has acknowledged.
        rejected: spans that the target refuses for good; they lie in the dead-letter file
            ``rejected.<exporter>.jsonl``.
        pending: spans on disk that are still to be delivered.
        retried: batches that were sent again because the target did not accept them.
        sampled_out: spans of groups that tail sampling does not deliver.
        problem: why nothing is delivered at present; None while delivery works.
        is_refused: whether delivery stays stopped until a person corrects the problem.
        destination: where to find the delivered spans, without credentials; empty while unknown.
        unresolved_scores: reason → scores by identity that belong to no trajectory; among the rejected ones.
    """

    delivered: int = 0
    rejected: int = 0
    pending: int = 0
    retried: int = 0
    sampled_out: int = 0
    problem: str | None = None
    is_refused: bool = False
    destination: str = field(default="", compare=False)
    unresolved_scores: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def merged(cls, counts: Sequence[ExporterCount]) -> ExporterCount:
        """Add up the counts of several machines."""
        problems = [count.problem for count in counts if count.problem]
        return cls(
            **totals(counts),
            problem="; ".join(dict.fromkeys(problems)) or None,
            is_refused=any(count.is_refused for count in counts),
            destination=next((count.destination for count in counts if count.destination), ""),
        )

    def lost_of(self, recorded: int) -> int:
        """Count the ``recorded`` spans that are in no other count."""
        # While a process records, pending lines may be newer than the count of recorded spans.
        return max(0, recorded - self.delivered - self.rejected - self.sampled_out - self.pending)


@dataclass(frozen=True)
class StepCount:
    """Counts of the spans of one step.

    ``delivered``, ``rejected`` and ``sampled_out`` are counts of the exporter that has delivered least.

    Attributes:
        recorded: spans that ended and were recorded.
        delivered: recorded spans that the target has acknowledged.
        rejected: recorded spans that the target refuses for good.
        sampled_out: recorded spans of groups that tail sampling does not deliver.
        dropped: reason → spans that ended and could not be recorded.
        open: spans that have started and not ended.
        unfinished: spans whose process died before they ended; see :class:`Report`.
    """

    recorded: int = 0
    delivered: int = 0
    rejected: int = 0
    sampled_out: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    open: int = 0
    unfinished: int = 0

    @property
    def started(self) -> int:
        """Spans that have started: recorded, dropped, open and unfinished ones."""
        return self.recorded + sum(self.dropped.values()) + self.open + self.unfinished

    @property
    def pending(self) -> int:
        """Recorded spans on disk that are still to be delivered."""
        return self.recorded - self.delivered - self.rejected - self.sampled_out


@dataclass(frozen=True)
class Report:
    """Counts of spans that all processes of a run recorded, and of delivered spans.

    A report covers one machine, or several machines whose reports were merged.

    Attributes:
        started: spans that have started.
        recorded: spans that ended and were written to the spool.
        unfinished: spans whose process died before they ended. The forwarder ends the trajectories among them
            as errors; these count as recorded, and not as unfinished.
        dropped: reason → spans that ended and could not be recorded.
        sampled_out: reason → trajectories that are not recorded on purpose (``trace=False``, head sampling),
            and scores that belong to no recorded trajectory.
        groups_kept: reason → groups that tail sampling (``OTEL_ROLLOUT_OUTCOME_KEEP``) delivers.
        groups_sampled_out: reason → groups that tail sampling does not deliver.
        exporters: exporter → counts of the recorded spans there.
        directory: the node directory that was counted, or several separated by commas; empty when nothing was
            recorded.
        problem: why the spool could not be read, or None. The counts are then those of this process.
        other_scopes: instrumentation scope of another library → its recorded spans; see ``scopes``.
        trajectories: recorded trajectories that did not begin inside another one.
        operations_outside: recorded operations that began outside any trajectory, without those below them.
    """

    started: int
    recorded: int
    unfinished: int
    dropped: Mapping[str, int]
    sampled_out: Mapping[str, int]
    groups_kept: Mapping[str, int]
    groups_sampled_out: Mapping[str, int]
    exporters: Mapping[str, ExporterCount]
    directory: str
    count_steps: Callable[[], Mapping[StepKey, StepCount]] = field(repr=False, compare=False)
    problem: str | None = None
    other_scopes: Mapping[str, int] = field(default_factory=dict)
    trajectories: int = 0
    operations_outside: int = 0

    @classmethod
    def empty(cls) -> Report:
        """Return the report of a process that records nothing."""
        return cls(0, 0, 0, {}, {}, {}, {}, {}, "", dict)

    @classmethod
    def unknown(cls, directory: str, exporters: Iterable[str], problem: str) -> Report:
        """Return the report of a directory that cannot be read."""
        nothing = dict.fromkeys(exporters, ExporterCount())
        return cls(0, 0, 0, {}, {}, {}, {}, nothing, directory, dict, problem)

    @classmethod
    def merged(cls, reports: Sequence[Report]) -> Report:
        """Add up the reports of several machines."""
        if len(reports) == 1:
            return reports[0]
        names = {name for report in reports for name in report.exporters}
        sums = totals(reports)
        sums["other_scopes"] = bounded_scopes(sums["other_scopes"])
        return cls(
            **sums,
            exporters={
                name: ExporterCount.merged([r.exporters[name] for r in reports if name in r.exporters])
                for name in sorted(names)
            },
            directory=", ".join(report.directory for report in reports if report.directory),
            count_steps=lambda: _merged_steps([report.by_step for report in reports]),
            problem="; ".join(report.problem for report in reports if report.problem) or None,
        )

    @property
    def open(self) -> int:
        """Spans that have started and not ended."""
        return self.started - self.recorded - self.unfinished - sum(self.dropped.values())

    @property
    def broken_chain(self) -> str:
        """A sentence on operations outside trajectories; empty if there are none, or no trajectories."""
        number = self.operations_outside if self.trajectories else 0
        return said_of_operations_outside(number) if number else ""

    @property
    def scopes(self) -> Mapping[str, int]:
        """Instrumentation scope → recorded spans, this package's first; they add up to ``recorded``."""
        # A killed process may have recorded a last span of another library that it did not count.
        ours = max(0, self.recorded - sum(self.other_scopes.values()))
        return {semconv.SCOPE: ours, **self.other_scopes}

    @property
    def lost(self) -> int:
        """Recorded spans that are in no other count, at the exporter that lost most."""
        return max((e.lost_of(self.recorded) for e in self.exporters.values()), default=0)

    @property
    def undelivered(self) -> int:
        """Spans dropped, and rejected or pending at the exporter with most: a person may have to act."""
        waiting = max((e.rejected + e.pending for e in self.exporters.values()), default=0)
        return waiting + sum(self.dropped.values())

    @cached_property
    def by_step(self) -> Mapping[StepKey, StepCount]:
        """Counts per step, read from disk at first use."""
        return self.count_steps()

    def summary(self) -> str:
        """Return the report as one line of text."""
        parts = [f"{self.recorded} {'span' if self.recorded == 1 else 'spans'} recorded"]
        if self.problem:
            parts.append(f"({self.problem})")
        for name, count in self.exporters.items():
            parts.append(f"{count.delivered} delivered to {name}, {count.pending} pending")
            if count.rejected:
                parts.append(f"{count.rejected} rejected")
            for reason, number in count.unresolved_scores.items():
                parts.append(f"{number} scores of {reason} trajectories")
            if count.sampled_out:
                parts.append(f"{count.sampled_out} sampled out")
            if count.problem:
                parts.append(f"({count.problem})")
        for what, counts in (
            ("dropped", self.dropped),
            ("left out on purpose", self.sampled_out),
            ("groups kept", self.groups_kept),
            ("groups sampled out", self.groups_sampled_out),
        ):
            if counts:
                parts.append(f"{what}: {', '.join(f'{n} {reason}' for reason, n in counts.items())}")
        parts.append(f"lost: {self.lost}")
        if any(count.pending for count in self.exporters.values()):
            parts.append(f"pending spans are kept on disk in {self.directory} until they are delivered")
        return "; ".join(parts)


def summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts by name; leave out names whose sum is 0."""
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return {name: number for name, number in total.items() if number}


def totals(counts: Sequence[Any]) -> dict[str, Any]:
    """Add up counts of one class, field by field: numbers, and numbers by name."""
    sums: dict[str, Any] = {}
    for field_ in dataclasses.fields(counts[0]):
        values = [getattr(count, field_.name) for count in counts]
        if field_.type == "int":
            sums[field_.name] = sum(values)
        elif field_.type == "Mapping[str, int]":
            sums[field_.name] = summed(values)
    return sums


def bounded_scopes(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the scopes with the most spans, in falling order, and one entry for the rest."""
    rest = counts.get(OTHER_SCOPES, 0)
    named = sorted((item for item in counts.items() if item[0] != OTHER_SCOPES), key=lambda item: -item[1])
    rest += sum(number for _, number in named[SCOPE_ROWS - 1 :])
    return dict(named[: SCOPE_ROWS - 1]) | ({OTHER_SCOPES: rest} if rest else {})


def _merged_steps(steps: Sequence[Mapping[StepKey, StepCount]]) -> dict[StepKey, StepCount]:
    keys = sorted({key for counts in steps for key in counts})
    return {key: StepCount(**totals([counts[key] for counts in steps if key in counts])) for key in keys}
