"""Define a trajectory's summary: identity, state, scores, duration and tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from otel_rollout.base import semconv
from otel_rollout.look.pages.scale import finite
from otel_rollout.otlp.evaluations import ODD, label_of
from otel_rollout.table.schema import has_time

VALIDATION: Final = "validation"
_INTEGER: Final = re.compile("[+-]?[0-9]{1,4000}")  # Python converts at most 4,300 digits
_PATH: Final = (semconv.STEP, semconv.SAMPLE_INDEX, semconv.ROLLOUT_N)
_NO_FACTS: Final = (
    *semconv.IDENTITY,
    semconv.BEGINS_TRAJECTORY,
    semconv.IN_EVALUATOR,
    semconv.SCORE_ORIGIN,
    semconv.TOKENIZER,
    semconv.TEXT_OF,
    semconv.TURN_CONTINUES,
    semconv.TURN_SHARED,
    semconv.TURN_LENGTH,
    *semconv.PREFIX_BREAK,
)
"""Attributes of a root span that are not shown as facts: identity, and attributes from the forwarder."""


@dataclass(frozen=True)
class Score:
    """The newest of a trajectory's scores with one name."""

    name: str
    value: float | bool | str
    comment: str = ""


class Tokens(NamedTuple):
    """Token counts of one or several model calls; None if not recorded."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None


@dataclass(frozen=True)
class Summary:
    """A trajectory in one row.

    Attributes:
        trace_id: trace id, 32 hex digits.
        run: id of the run that recorded the trajectory.
        project: name of the project.
        experiment: name of the training run.
        path: step, sample and rollout, separated by slashes; in a validation, ``validation/`` comes first.
            Empty for a trace that is no trajectory.
        step_text: its step if that is a text, which may hold slashes; else empty.
        name: name of the root span.
        state: ``ok``, ``error``, or ``running`` while no root span has ended.
        error: error of the root span.
        error_type: its class.
        start_ns: start in nanoseconds of Unix time; if the start is unknown, a small number for sorting.
        seconds: duration; None while the trajectory runs, and if unknown.
        scores: the newest score of each name.
        tokens: token counts of all model calls.
        turns: number of model calls.
        tool_calls: number of tool calls.
        tool_errors: number of tool calls that ended with an error; None if no call tells.
        facts: further attributes of the root span, by their short names.
    """

    trace_id: str
    run: str = ""
    project: str = ""
    experiment: str = ""
    path: str = ""
    step_text: str = ""
    name: str = ""
    state: str = "running"
    error: str = ""
    error_type: str = ""
    start_ns: int = 0
    seconds: float | None = None
    scores: tuple[Score, ...] = ()
    tokens: Tokens = field(default_factory=Tokens)
    turns: int = 0
    tool_calls: int = 0
    tool_errors: int | None = 0
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key, in the order of ``list``: training first, then names, with numbers by value."""
        is_validation, parts = parts_of(self.path, self.step_text)
        names = map(_in_order, (parts[0], "/".join(parts[1:-1]), parts[-1]))
        return not self.path, is_validation, *names, self.path, self.start_ns


def tokens_of(row: Mapping[str, Any]) -> Tokens:
    """Return the counts of a row of a view."""
    return Tokens(row.get("tokens_in"), row.get("tokens_out"), row.get("tokens_cached"))


def path_of(identity: Mapping[str, Any]) -> str:
    """Return step, sample and rollout as a path; empty for a span outside of trajectories."""
    if not semconv.is_of_trajectory(identity):
        return ""
    parts = [str(identity.get(name, "-")) for name in _PATH]
    return "/".join([VALIDATION, *parts] if identity[semconv.VALIDATE] else parts)


def parts_of(path: str, step: str = "") -> tuple[bool, list[str]]:
    """Return whether a path is of a validation, and its parts: step, sample and rollout, as far as given.

    Args:
        path: the path.
        step: its step if that is a text, which may begin like the path of a validation; else empty.
    """
    is_validation = path.startswith(f"{VALIDATION}/{step}" + "/" * bool(step))
    return is_validation, path.split("/")[is_validation:]


def readings_of(path: str) -> list[tuple[bool, list[str]]]:
    """Return what a path that a person typed may say: a step may be called ``validation``, too."""
    return [parts_of(path)] + [(False, path.split("/"))] * parts_of(path)[0]


def _in_order(name: str) -> tuple[int, int, str]:
    """Return a sort key: integers of 64 bits by value, then texts, then a missing name."""
    number = int(name) if _INTEGER.fullmatch(name) else None
    if number is not None and -(2**63) <= number < 2**63:
        return 0, number, name
    return (2, 0, "") if name == "-" else (1, 0, name)


def group_of(summary: Summary) -> str:
    """Return the name of a trajectory's group; empty for a trace that is no trajectory."""
    return summary.path.rpartition("/")[0]


def references(summaries: Sequence[Summary]) -> dict[str, str]:
    """Return trace id → unique name: the path, or the trace id if the path is empty or not unique."""
    paths = Counter(summary.path for summary in summaries)
    return {
        summary.trace_id: summary.path if summary.path and paths[summary.path] == 1 else summary.trace_id
        for summary in summaries
    }


def reward_columns(summary: Summary) -> dict[str, Any]:
    """Return a trajectory's reward as columns of a list: a finite number, and a label for any other value."""
    value = next((score.value for score in summary.scores if score.name == "reward"), None)
    return {"reward": None if isinstance(value, str) else finite(value), "reward_label": label_of(value)}


def reward_of(summary: Summary) -> float | None:
    """Return a trajectory's reward as a finite number; None without one, or if its magnitude is too large."""
    number: float | None = reward_columns(summary)["reward"]
    return number if number is None or abs(number) < ODD else None


def start_time(summary: Summary) -> str:
    """Format a trajectory's start in UTC; return empty text if it is unknown."""
    if not has_time(summary.start_ns):
        return ""
    return datetime.fromtimestamp(summary.start_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def facts_of(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the further attributes of a root span, by their short names."""
    return {
        semconv.short_name(name): value
        for name, value in attributes.items()
        if name.startswith(semconv.EXTRA_PREFIX)
        and not name.startswith((semconv.SCORE_PREFIX, semconv.SCORE_TIME_PREFIX))
        and name not in _NO_FACTS
    }
