"""Compare steps, or two runs: possible causes come before their consequences, the most surprising first.

A figure changes from step to step by chance, too. This noise is told by the absolute differences between
consecutive steps. The noise of a step is their median divided by 0.954, or their upper quartile divided by
1.627, whichever is more. If steps differ by chance only, both are the standard deviation of one step.
Differences between a step of one side and a step of the other do not count. The noise of a step is at least
the standard error of a sample of its size, so that a run of two steps can be compared. The noise of a side is
the noise of a step divided by the root of the side's number of steps, and at least a hundredth of the figure.
For a phase, it is at least a thousandth of a trajectory's duration: nobody gains from a shorter change.

The groups of a step tell the error of its mean reward better than other steps do, which may differ for other
causes. So for the mean reward, the noise of steps counts only if it is more than twice the error from groups.

The surprise is the difference of the two sides, divided by the root of the sum of their squared noises. Two
figures that a person reads as equal have none.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Final

from otel_rollout.look.analysis.evidence import Search, examples_of
from otel_rollout.look.analysis.report.measures import Measure, Unit, Value, measures_of
from otel_rollout.look.analysis.report.report import StepReport, Tool
from otel_rollout.look.analysis.rises import SURPRISING, risen_at
from otel_rollout.look.analysis.run_choice import Run, reference_of, runs_in
from otel_rollout.look.conversation.formatting import duration, percent, steps_in_words
from otel_rollout.table.query import Engine

_OF_NORMAL: Final = (0.954, 1.627)
"""Median and upper quartile of the absolute difference of two normal draws, in standard deviations."""
_RELATIVE: Final = 0.01
"""Least noise of a side, as a part of the figure."""
_OF_DURATION: Final = 0.001
"""Least noise of a duration or phase on a side, as a part of the median duration of a trajectory."""
_LEAST: Final = 1e-9
"""Least noise of a side."""
_SWINGING: Final = 2.0
"""Ratio of the noise of steps to the error from groups, above which the noise of steps counts, too."""
_MIN_DIFFERENCES: Final = 3
"""Minimum differences of consecutive steps to tell the noise."""
_WRITTEN: Final[Mapping[Unit, Callable[[float], str]]] = {
    "share": percent, "seconds": duration, "number": str,
}  # fmt: skip
"""Unit → a figure as a person reads it; a number has enough digits for every change that counts."""
_MIN_PART: Final = 0.01
"""Minimum change of a cause's share for the cause to be named."""


@dataclass(frozen=True, slots=True)
class Side:
    """The steps on one side of a comparison."""

    run: Run
    steps: tuple[StepReport, ...]

    @property
    def name(self) -> str:
        """The steps for a person: ``step 40``, ``steps 1, 30–40``."""
        return steps_in_words(step.step for step in self.steps) if self.steps else "no steps"


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause's share of what a measure counts, on both sides."""

    name: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class RunChange:
    """A figure on both sides.

    Attributes:
        name: the measure's name.
        label: its name for a person.
        unit: what it counts.
        before: the figure before.
        after: the figure after.
        surprise: the difference in units of the noise.
        is_worse: whether the figure moved in the unwanted direction; None if either may be right.
        parts: its causes that changed, the largest change first.
        examples: names of trajectories that show it, for ``otel-rollout show``.
        run: name of their run if it is not the newest, for ``--run``.
    """

    name: str
    label: str
    unit: Unit
    before: float
    after: float
    surprise: float
    is_worse: bool | None
    parts: tuple[Cause, ...] = ()
    examples: tuple[str, ...] = ()
    run: str | None = None


@dataclass(frozen=True, slots=True)
class RunComparison:
    """What changed from one side to the other.

    Attributes:
        before: the earlier side.
        after: the later side.
        changes: the surprising changes: possible causes, the outcome, and what follows; the most surprising
            of each first.
        others: the other figures, ordered alike, without examples.
    """

    before: Side
    after: Side
    changes: tuple[RunChange, ...]
    others: tuple[RunChange, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as ``report --compare … --json`` prints it."""
        sides = {
            name: {**side.run._asdict(), "steps": [step.step for step in side.steps]}
            for name, side in (("before", self.before), ("after", self.after))
        }
        return {
            **sides,
            "changes": [asdict(change) for change in self.changes],
            "others": [asdict(change) for change in self.others],
        }


def compare(
    engine: Engine, before: Side, after: Side, history: Sequence[Sequence[StepReport]]
) -> RunComparison:
    """Compare two sides.

    Args:
        engine: queries the table.
        before: the steps to compare with.
        after: the steps to explain.
        history: all steps, in order, of each run of the two sides; the noise is measured on these steps.
    """
    sides = (before.steps, after.steps)
    measures = measures_of([*before.steps, *after.steps])
    found = [(change, measure) for measure in measures if (change := _change(measure, sides, history))]
    found.sort(key=lambda pair: (pair[1].rank, -pair[0].surprise))
    surprising = [pair for pair in found if pair[0].surprise >= SURPRISING]
    surprising = [pair for pair in surprising if not _is_told(pair[1], surprising)]
    searches = [_search(change, measure, before, after) for change, measure in surprising]
    examples = examples_of(engine, searches)
    newest, *_ = known = runs_in(engine)
    changes = tuple(
        replace(change, examples=names, run=None if search.run == newest else reference_of(search.run, known))
        for (change, _), search, names in zip(surprising, searches, examples, strict=True)
    )
    others = tuple(change for change, _ in found if change.surprise < SURPRISING)
    return RunComparison(before, after, changes, others)


def sides_of_runs(
    before: tuple[Run, Sequence[StepReport]], after: tuple[Run, Sequence[StepReport]]
) -> tuple[Side, Side]:
    """Return the steps that two runs share by their numbers, or all steps if they share none."""
    shared = {step.step for step in before[1]} & {step.step for step in after[1]}
    return (
        Side(before[0], tuple(step for step in before[1] if not shared or step.step in shared)),
        Side(after[0], tuple(step for step in after[1] if not shared or step.step in shared)),
    )


def _is_told(measure: Measure, found: Sequence[tuple[RunChange, Measure]]) -> bool:
    """Return whether changes of single tools already tell the change of a measure of all tools."""
    return any(other.tool and other.name.partition(":")[0] == measure.name for _, other in found)


def _change(
    measure: Measure,
    sides: tuple[Sequence[StepReport], Sequence[StepReport]],
    history: Sequence[Sequence[StepReport]],
) -> RunChange | None:
    """Return the change of a figure; None if a side does not have the figure."""
    values = [[value for step in side if (value := measure.of(step)) is not None] for side in sides]
    if not all(values):
        return None
    before, after = (_pooled(side) for side in values)
    usual = _noise(measure.of, sides, history)
    whole = max((step.seconds.p50 or 0.0 for side in sides for step in side), default=0.0)
    least = _OF_DURATION * whole if measure.is_of_duration else _LEAST
    floor = max(_RELATIVE * max(abs(before), abs(after)), least, _LEAST)
    noise = math.hypot(*(max(_side_noise(side, usual), floor) for side in values))
    written = _WRITTEN[measure.unit]
    difference = 0.0 if written(before) == written(after) else after - before
    is_worse = None if measure.worse is None else (difference > 0) == (measure.worse == "up")
    return RunChange(
        measure.name,
        measure.label,
        measure.unit,
        before,
        after,
        round(abs(difference) / noise, 2),
        is_worse if difference else None,
        _parts(measure, sides),
    )


def _pooled(values: Sequence[Value]) -> float:
    """Return the mean of the steps' figures, weighted by their counts."""
    return sum(value.value * value.count for value in values) / sum(value.count for value in values)


def _side_noise(values: Sequence[Value], usual: float | None) -> float:
    """Return the noise of the mean of some steps; a guessed error counts only if nothing else is known."""
    errors = [value.error for value in values if usual is None or value.basis != "guess"]
    error = statistics.fmean(errors or [0.0])
    is_told_by_groups = all(value.basis == "groups" for value in values)
    if usual is None or (is_told_by_groups and usual <= _SWINGING * error):
        usual = 0.0
    return max(usual, error) / math.sqrt(len(values))


def _noise(
    of: Callable[[StepReport], Value | None],
    sides: Iterable[Sequence[StepReport]],
    history: Sequence[Sequence[StepReport]],
) -> float | None:
    """Estimate a step's standard deviation from differences of consecutive steps; None with too few."""
    before, after = ({id(step) for step in side} for side in sides)
    differences = []
    for steps in history:
        known = [(id(step), value.value) for step in steps if (value := of(step)) is not None]
        for (one, left), (other, right) in pairwise(known):
            if not ((one in before and other in after) or (one in after and other in before)):
                differences.append(abs(right - left))
    if len(differences) < _MIN_DIFFERENCES:
        return None
    _, *found = statistics.quantiles(differences, n=4, method="inclusive")
    return max(value / normal for value, normal in zip(found, _OF_NORMAL, strict=True))


def _parts(measure: Measure, sides: tuple[Sequence[StepReport], Sequence[StepReport]]) -> tuple[Cause, ...]:
    """Return the causes whose share of what the measure counts has changed."""
    if measure.parts is None:
        return ()
    wholes, counted = [0, 0], (Counter[str](), Counter[str]())
    for index, side in enumerate(sides):
        for step in side:
            value = measure.of(step)
            wholes[index] += value.count if value else 0
            counted[index].update(measure.parts(step))
    parts = [
        Cause(name, *(counts[name] / max(1, whole) for counts, whole in zip(counted, wholes, strict=True)))
        for name in {**counted[0], **counted[1]}
    ]
    changed = [part for part in parts if abs(part.after - part.before) >= _MIN_PART]
    changed.sort(key=lambda part: (-abs(part.after - part.before), part.name))
    return tuple(changed)


def _search(change: RunChange, measure: Measure, before: Side, after: Side) -> Search:
    """Return where to look for trajectories that show a change.

    If a share fell, the search is for trajectories that had the property before. If a mean fell, it is for
    the lowest figures after.
    """
    is_rise = change.after > change.before
    counts = measure.unit == "share"
    side = before if counts and not is_rise else after
    return Search(
        side.run,
        tuple((step.validate, step.step) for step in side.steps),
        measure.order,
        is_descending=is_rise or counts,
        is_counted=counts,
        tool=measure.tool,
    )


# --- when a tool's errors rise ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolHistory:
    """A tool over the steps of a run.

    Attributes:
        name: the tool's name; null if none was recorded.
        calls: number of calls.
        known: number of those that tell whether they failed.
        errors: number of failed calls; null if no call tells whether it failed.
        error_types: failed calls by the class of their error, the most frequent first.
        risen_at: name of the step from which on calls fail more often; null if there is none.
        steps: the tool's calls in each step; null where it was not called.
    """

    name: str | None
    calls: int
    known: int
    errors: int | None
    error_types: Mapping[str, int]
    risen_at: str | None
    steps: tuple[Tool | None, ...]


def histories_of(steps: Sequence[StepReport]) -> list[ToolHistory]:
    """Return the tools that steps call, those with the most errors first."""
    by_name: dict[str | None, list[Tool | None]] = {}
    for place, step in enumerate(steps):
        for tool in step.tools:
            by_name.setdefault(tool.name, [None] * len(steps))[place] = tool
    found = [_history(name, tools, steps) for name, tools in by_name.items()]
    return sorted(found, key=lambda tool: (-(tool.errors or 0), -tool.calls, tool.name or ""))


def _history(name: str | None, tools: Sequence[Tool | None], steps: Sequence[StepReport]) -> ToolHistory:
    types = sum((Counter(tool.error_types) for tool in tools if tool), Counter[str]())
    calls = sum(tool.calls for tool in tools if tool)
    known = [tool.known if tool else 0 for tool in tools]
    errors = [(tool.errors or 0) if tool else 0 for tool in tools]
    place = risen_at(known, errors)
    rise = None if place is None else steps[place].name
    failed = sum(errors) if any(known) else None
    return ToolHistory(name, calls, sum(known), failed, dict(types.most_common()), rise, tuple(tools))
