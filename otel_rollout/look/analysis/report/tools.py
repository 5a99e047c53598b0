"""Tell of each tool how often it fails, and since which step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from otel_rollout.look.analysis.report.report import StepReport, Tool

_SURPRISING: Final = 3.0
"""Standard errors from which on a tool's share of errors has risen, and not by chance."""


@dataclass(frozen=True, slots=True)
class ToolHistory:
    """A tool over the steps of a run.

    Attributes:
        name: the tool's name; null if none was recorded.
        calls: number of calls.
        errors: number of failed calls.
        error_types: failed calls by the class of their error, the most frequent first.
        since: name of the step from which on calls fail more often than before, else of the first error.
        steps: the tool's calls in each step; null where it was not called.
    """

    name: str | None
    calls: int
    errors: int
    error_types: Mapping[str, int]
    since: str | None
    steps: tuple[Tool | None, ...]


def histories_of(steps: Sequence[StepReport]) -> list[ToolHistory]:
    """Return the tools that steps call, those with the most errors first."""
    by_name: dict[str | None, list[Tool | None]] = {}
    for place, step in enumerate(steps):
        for tool in step.tools:
            by_name.setdefault(tool.name, [None] * len(steps))[place] = tool
    found = [_history(name, tools, steps) for name, tools in by_name.items()]
    return sorted(found, key=lambda tool: (-tool.errors, -tool.calls, tool.name or ""))


def _history(name: str | None, tools: Sequence[Tool | None], steps: Sequence[StepReport]) -> ToolHistory:
    types: Counter[str] = Counter()
    for tool in filter(None, tools):
        types.update(tool.error_types)
    calls = [tool.calls if tool else 0 for tool in tools]
    errors = [tool.errors if tool else 0 for tool in tools]
    place = _risen_at(calls, errors)
    if place is None:
        place = next((place for place, number in enumerate(errors) if number), None)
    since = None if place is None else steps[place].name
    return ToolHistory(name, sum(calls), sum(errors), dict(types.most_common()), since, tuple(tools))


def _risen_at(calls: Sequence[int], errors: Sequence[int]) -> int | None:
    """Return the place that divides the steps best into those with few and those with more errors."""
    whole, bad = sum(calls), sum(errors)
    if not 0 < bad < whole:
        return None
    spread = math.sqrt(bad / whole * (1 - bad / whole))
    best, found = _SURPRISING, None
    for place, (before, failed) in enumerate(
        zip(accumulate(calls), accumulate(errors), strict=True), start=1
    ):
        after = whole - before
        if before and after:
            rise = (bad - failed) / after - failed / before
            surprise = rise / (spread * math.sqrt(1 / before + 1 / after))
            best, found = (surprise, place) if surprise > best else (best, found)
    return found
