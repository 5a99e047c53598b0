"""Read the views of the rollout table: SQL that DataFusion and DuckDB both run."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

Definition = Callable[[str], str]
_DIRECTORY: Final = Path(__file__).with_name("views")
_FILES: Final = frozenset(path.stem for path in _DIRECTORY.glob("*.sql"))
_TOKEN: Final = re.compile(r"'(?:[^']|'')*'|--[^\n]*|[()]|\w+")
_CLAUSES: Final = {
    **dict.fromkeys(("from", "join"), True),
    **dict.fromkeys(("select", "where", "group", "having", "window", "order", "limit"), False),
}
"""Keyword that begins a clause → whether its words may be tables."""


NAMES: Final = (
    "trajectories", "turns", "prefix_breaks", "tool_calls", "scores", "training", "unresolved_scores",
    "groups", "steps", "phases", "engine_requests", "engine_time", "engine_steps", "runs", "spans",
)  # fmt: skip
"""The views for users, which docs/table.md describes."""
STORED_ROWS: Final = "stored_rows"
"""Name under which an engine has the table itself."""
REPEATED: Final = "repeated_starts"
RECORDED: Final = "recorded_spans"
SPANS: Final = "spans"
REQUESTS: Final = "engine_requests"
KNOWN_RUNS: Final = "known_runs"
SPAN_NAMES: Final = "span_names"
TRACE_ROWS: Final = "trace_rows"
SMALL: Final = frozenset(
    {
        REPEATED,
        "repeated_spans",
        "unended_traces",
        "inner_calls",
        "inner_facts",
        "trainer_steps",
        "uncompared_calls",
    }
)
"""Views with few rows, usually none. An engine that keeps their rows reads the table once for them."""
SLOW: Final = frozenset({"roots", "newest_scores"})
"""Views that other views read often. An engine that keeps their rows plans and computes them once."""
OF_STORED_ROWS: Final = frozenset({"roots", REPEATED})
"""Views that an engine can read from stored rows of trajectories instead of spans."""
WIDE: Final = frozenset({RECORDED, SPANS, "counted_calls", "turns", "tool_calls", "timed_spans"})
"""Views of spans with their content. An engine for few traces keeps all others, to plan each once."""
MERGED: Final = "merged_rows"
"""Name under which an engine has the rows of all trajectories, if most of them are stored."""
MERGED_TRACES: Final = "merged_traces"
"""Name under which an engine has the rows of all traces, with the identities that their spans name."""
KEPT_RUNS: Final = "kept_runs"
"""Name under which an engine has the runs of stored trajectories that count."""
_JOINED: Final = re.compile(
    r"FROM (?:roots|counted_rows|(trained_rows))(?:\s+LEFT JOIN \w+ ON trace_id = \w+)+"
)
"""Trajectories with parts of them: merged rows have all parts, but not what a trainer says of steps."""


@functools.cache
def sql_of(name: str) -> str:
    """Return the SELECT of a view."""
    return (_DIRECTORY / f"{name}.sql").read_text(encoding="utf-8").rstrip()


def of_merged_rows(name: str) -> str:
    """Return the SELECT of a view in an engine that has the rows of all trajectories."""
    own = f"merged/{name}"
    if (_DIRECTORY / f"{own}.sql").exists():
        return sql_of(own)
    return _JOINED.sub(lambda match: f"FROM {match[1] or MERGED}", sql_of(name))


def of_open_rows(name: str) -> str:
    """Return the SELECT of a view in an engine that computes the rows of some traces, beside stored ones."""
    return sql_of(name) + (f" UNION SELECT run_id FROM {KEPT_RUNS}" if name == KNOWN_RUNS else "")  # noqa: S608


def over(name: str, tables: Mapping[str, str]) -> str:
    """Return the SELECT of a view that reads tables in place of some views.

    Args:
        name: the view.
        tables: view → table.
    """
    read = re.compile(rf"\b(FROM|JOIN) ({'|'.join(tables)})\b")
    return read.sub(lambda match: f"{match[1]} {tables[match[2]]}", sql_of(name))


def needed_by(sql: str, definition: Definition = sql_of) -> tuple[str, ...]:
    """Return the views that a query reads, and those that these read, in order of creation.

    Args:
        sql: the query.
        definition: returns the SELECT of a view.
    """
    wanted = _tables_in(sql).intersection(_FILES)
    for name in reversed(order()):
        if name in wanted:
            wanted |= _reads(name, definition)
    return tuple(name for name in order() if name in wanted)


@functools.cache
def order() -> tuple[str, ...]:
    """Return the names of all views, each after the views that it reads."""
    read = {name: sorted(_reads(name, sql_of) | _reads(name, of_merged_rows)) for name in sorted(_FILES)}
    return tuple(TopologicalSorter(read).static_order())


@functools.cache
def _reads(name: str, definition: Definition) -> frozenset[str]:
    """Return the views that a view reads."""
    return frozenset(_tables_in(definition(name)).intersection(_FILES))


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
