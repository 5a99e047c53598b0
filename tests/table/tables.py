"""Write small rollout tables for tests."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from arro3.core import Table
from deltalake import DeltaTable, QueryBuilder

from otel_rollout.table.location import location_of
from otel_rollout.table.query import Engine, dicts_of
from otel_rollout.table.rows import batch_of
from otel_rollout.table.store import Store
from tests.table.generated_table import Shape, batches

START_NS = 1_767_225_600_000_000_000
_times = itertools.count(START_NS, 1_000_000)
BEGINNING = '{"rollout.begins_trajectory":true}'
"""Attributes of the span of a trajectory that has a parent."""


def row(trace: str, span: str, parent: str | None = None, **columns: Any) -> dict[str, Any]:
    """Return a row of a span in trajectory 1/7/0, with short ids; an agent's begins a trajectory."""
    if parent is not None and columns.get("kind") == "AGENT":
        columns = {"attributes": BEGINNING, **columns}
    start = columns.pop("start_ns", None) or next(_times)
    return {
        "trace_id": trace.rjust(32, "0"),
        "span_id": span.rjust(16, "0"),
        "parent_span_id": None if parent is None else parent.rjust(16, "0"),
        "run_id": "run-1",
        "project": "project",
        "experiment": "first",
        "step": 1,
        "sample_index": "7",
        "rollout_n": 0,
        "validate": False,
        "name": "operation",
        "kind": "CHAIN",
        "is_root": parent is None and "score_name" not in columns,
        "start_time": start // 1000,
        "start_ns": start,
        "duration_ns": 1_000_000_000,
        "status": "unset",
        **columns,
    }


def engine_phase(trace: str, span: str, request: str, name: str, **columns: Any) -> dict[str, Any]:
    """Return a row of a phase that this package has made below an engine's request; it has no scope."""
    marked = json.dumps({"rollout.engine.phase": name}, separators=(",", ":"))
    return row(trace, span, request, name=name, kind=None, attributes=marked, **columns)


def root(trace: str, **columns: Any) -> dict[str, Any]:
    """Return the row of a root span; its id is the trace's with an ``a`` before."""
    return row(trace, "a" + trace, **{"name": "agent_loop", "kind": "AGENT", **columns})


def score(trace: str, span: str, value: float | None, **columns: Any) -> dict[str, Any]:
    """Return the row of an evaluation span named ``reward``."""
    given = {"name": "score", "score_name": "reward", "score_value": value, "score_by": "trace"}
    return row(trace, span, "a" + trace, **{**given, **columns})


def written(path: Path, *commits: Iterable[dict[str, Any]]) -> Store:
    """Write a table with a commit for each group of rows."""
    store = Store(location_of(str(path)))
    for number, rows in enumerate(commits):
        store.append([batch_of(list(rows))], "tests", number)
    return store


def generated(path: Path, shape: Shape, rows_each: int = 500_000) -> Store:
    """Write a generated table."""
    store = Store(location_of(str(path)))
    for number, rows in enumerate(batches(shape, rows_each)):
        store.append(Table.from_arrow(rows).to_batches(), "tests", number)
    return store


def selected(engine: Engine, sql: str) -> Table:
    """Run a query that a user has written, as a command does."""
    return engine.run(engine.check(sql))


def asked(store: Store, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a query as dicts."""
    return dicts_of(selected(Engine(store.open()), sql))


def appended_rows(writer: str, commit: int, rows: int, start_ns: int = START_NS) -> list[dict[str, Any]]:
    """Return the rows of a writer's commit, which tell apart writers, commits and rows."""
    return [
        root(
            f"{zlib.crc32(f'{writer}/{commit}/{index}'.encode()):x}",
            start_ns=start_ns + commit,
            run_id=f"run-{writer}",
            step=commit,
            sample_index=str(index),
            output=f'"{writer} {commit} {index} é"',
            scores=[{"name": "reward", "value": index / 8, "label": None, "time_ns": commit}],
        )
        for index in range(rows)
    ]


def all_rows(uri: Path | str) -> list[dict[str, Any]]:
    """Return all rows of a table, by trace id, without the code under test."""
    found = QueryBuilder().register("rows", DeltaTable(str(uri))).execute("SELECT * FROM rows").read_all()
    lists = [found.column(name).to_pylist() for name in found.schema.names]
    rows = [dict(zip(found.schema.names, values, strict=True)) for values in zip(*lists, strict=True)]
    return sorted(rows, key=lambda each: (each["trace_id"], each["span_id"]))
