"""Read the views of the rollout table: SQL that DataFusion and DuckDB both run."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

_DIRECTORY: Final = Path(__file__).with_name("views")
_WORD: Final = re.compile(r"\w+")


class View(NamedTuple):
    """A view that a user may query.

    Attributes:
        name: the view's name.
        meaning: its rows, in one sentence.
    """

    name: str
    meaning: str


PUBLIC: Final = (
    View("trajectories", "A row per trajectory: identity, state, duration, counts, reward, broken prefixes."),
    View("turns", "A row per model call: tokens, finish reason, messages by role, reply, input and output."),
    View("prefix_breaks", "A row per turn whose tokens are not the beginning of the next prompt."),
    View("tool_calls", "A row per call of a tool: arguments, result and error."),
    View("scores", "The newest score of each name of each trajectory."),
    View("training", "A row per trajectory: what training made of it, and the mismatch of its tokens."),
    View("unresolved_scores", "A row per score by identity that belongs to no trajectory, with the reason."),
    View("groups", "A row per group: the trajectories of one dataset row in one step."),
    View("steps", "A row per training or validation step of a run."),
    View("phases", "A row per trajectory: seconds of model calls, tools, rewards and waiting."),
    View("engine_requests", "A row per request in an inference engine: queue, prefill, decode, first token."),
    View(
        "engine_time", "A row per trajectory with such requests: their seconds, and model calls without one."
    ),
    View("engine_steps", "A row per step with such requests: means of a trajectory, quantiles of a request."),
    View("runs", "A row per run."),
    View("spans", "Each span once: the columns of the table, and the names of its trajectory and group."),
)
"""The views for users."""
NAMES: Final = tuple(view.name for view in PUBLIC)
STORED_ROWS: Final = "stored_rows"
"""Name under which an engine has the table itself."""
REPEATED: Final = "repeated_starts"
RECORDED: Final = "recorded_spans"
SPANS: Final = "spans"
REQUESTS: Final = "engine_requests"
ORDER: Final = (
    RECORDED,
    REPEATED,
    SPANS,
    "unended_traces",
    "inner_calls",
    "inner_tokens",
    "roots",
    "given_by_identity",
    "identity_scores",
    "unresolved_scores",
    "newest_scores",
    "rewards",
    "outcomes",
    "score_lists",
    "counted_calls",
    "call_figures",
    "unparsed_calls",
    "turns",
    "tool_calls",
    "prefix_breaks",
    "break_figures",
    "timed_spans",
    "segments",
    "phase_figures",
    "engine_phases",
    REQUESTS,
    "request_figures",
    "trajectory_rows",
    "trajectories",
    "scores",
    "training",
    "phases",
    "engine_time",
    "engine_steps",
    "first_breaks",
    "reply_figures",
    "finite_rewards",
    "report_rows",
    "step_numbers",
    "groups",
    "steps",
    "runs",
)
"""All views, each after the views that it reads."""
SMALL: Final = frozenset({REPEATED, "unended_traces", "inner_calls", "inner_tokens"})
"""Views with few rows, usually none. An engine that keeps their rows reads the table once for them."""
SLOW: Final = frozenset({"roots", "newest_scores"})
"""Views with many rows that cost most of a query. A process with many queries keeps their rows."""


@functools.cache
def sql_of(name: str) -> str:
    """Return the SELECT of a view."""
    return (_DIRECTORY / f"{name}.sql").read_text(encoding="utf-8").rstrip()


def needed_by(sql: str) -> tuple[str, ...]:
    """Return the views whose names a text has, and the views that these read, in order of creation."""
    wanted = _named_in(sql.lower(), ORDER)
    for name in reversed(ORDER):
        if name in wanted:
            wanted |= _reads(name)
    return tuple(name for name in ORDER if name in wanted)


@functools.cache
def _reads(name: str) -> frozenset[str]:
    """Return the views that a view reads, or whose names its columns have; all are made before it."""
    without_comments = re.sub(r"--[^\n]*", "", sql_of(name))
    return frozenset(_named_in(without_comments, ORDER[: ORDER.index(name)]))


def _named_in(sql: str, names: Iterable[str]) -> set[str]:
    return set(_WORD.findall(sql)).intersection(names)
