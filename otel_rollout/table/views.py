"""Read the views of the rollout table: SQL that DataFusion and DuckDB both run."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

Definition = Callable[[str], str]
_DIRECTORY: Final = Path(__file__).with_name("views")
_TOKEN: Final = re.compile(r"'(?:[^']|'')*'|--[^\n]*|[()]|\w+")
_CLAUSES: Final = {
    **dict.fromkeys(("from", "join"), True),
    **dict.fromkeys(("select", "where", "group", "having", "window", "order", "limit"), False),
}
"""Keyword that begins a clause → whether its words may be tables."""


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
KNOWN_RUNS: Final = "known_runs"
SPAN_NAMES: Final = "span_names"
TRACE_ROWS: Final = "trace_rows"
ORDER: Final = (
    RECORDED,
    SPAN_NAMES,
    "trace_names",
    REPEATED,
    SPANS,
    "unended_traces",
    "inner_calls",
    "inner_tokens",
    "roots",
    KNOWN_RUNS,
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
    TRACE_ROWS,
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
"""Views that other views read often. An engine that keeps their rows plans and computes them once."""
WIDE: Final = frozenset({RECORDED, SPANS, "counted_calls", "turns", "tool_calls", "timed_spans"})
"""Views of spans with their content. An engine for few traces keeps all others, to plan each once."""
MERGED: Final = "merged_rows"
"""Name under which an engine has the rows of all trajectories, if most of them are stored."""
MERGED_TRACES: Final = "merged_traces"
"""The same of all traces, with what their spans name."""
KEPT_RUNS: Final = "kept_runs"
"""Name under which an engine has the runs of stored trajectories that count."""
_JOINED_ROOTS: Final = re.compile(r"FROM roots(?:\s+LEFT JOIN \w+ ON trace_id = \w+)+")


@functools.cache
def sql_of(name: str) -> str:
    """Return the SELECT of a view."""
    return (_DIRECTORY / f"{name}.sql").read_text(encoding="utf-8").rstrip()


def of_merged_rows(name: str) -> str:
    """Return the SELECT of a view in an engine that has the rows of all trajectories."""
    own = f"merged/{name}"
    if (_DIRECTORY / f"{own}.sql").exists():
        return sql_of(own)
    return _JOINED_ROOTS.sub(f"FROM {MERGED}", sql_of(name))


def of_open_rows(name: str) -> str:
    """Return the SELECT of a view in an engine that computes the rows of some traces, beside stored ones."""
    return sql_of(name) + (f" UNION SELECT run_id FROM {KEPT_RUNS}" if name == KNOWN_RUNS else "")  # noqa: S608


def needed_by(sql: str, definition: Definition = sql_of) -> tuple[str, ...]:
    """Return the views that a query reads, and those that these read, in order of creation.

    Args:
        sql: the query.
        definition: returns the SELECT of a view.
    """
    wanted = _tables_in(sql).intersection(ORDER)
    for name in reversed(ORDER):
        if name in wanted:
            wanted |= _reads(name, definition)
    return tuple(name for name in ORDER if name in wanted)


@functools.cache
def _reads(name: str, definition: Definition) -> frozenset[str]:
    """Return the views that a view reads; all are made before it."""
    return frozenset(_tables_in(definition(name)).intersection(ORDER[: ORDER.index(name)]))


def _tables_in(sql: str) -> set[str]:
    """Return the words of a query's FROM clauses. Columns may have the names of views."""
    found: set[str] = set()
    around: list[bool] = []
    is_table = False
    for match in _TOKEN.finditer(sql.lower()):
        word = match[0]
        if word == "(":
            around.append(is_table)
        elif word == ")":
            is_table = bool(around) and around.pop()
        elif word in _CLAUSES:
            is_table = _CLAUSES[word]
        elif is_table:
            found.add(word)
    return found
