"""Read tables, and the rows that recorded lines should become, without the code under test."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, QueryBuilder

from tests.spool_reader import Recorded, read_directory

COMPARED = (
    *("trace_id", "span_id", "parent_span_id", "run_id", "name", "scope", "kind", "input", "output"),
    *("start_ns", "duration_ns", "status"),
    *("project", "experiment", "step", "sample_index", "rollout_n", "validate"),
)
"""Columns that are compared with the recorded lines."""
_STATUS = ("unset", "ok", "error")


def rows_in(uri: Path | str, columns: Iterable[str] = COMPARED) -> list[dict[str, Any]]:
    """Return the rows of a table, with some of its columns."""
    query = f"SELECT {', '.join(columns)} FROM spans"
    found = QueryBuilder().register("spans", DeltaTable(str(uri))).execute(query).read_all()
    names = found.schema.names
    lists = [found.column(name).to_pylist() for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]


def expected_rows(spool: Path) -> list[dict[str, Any]]:
    """Return the rows that the lines of a spool, and of its archives, should become."""
    return [_expected(recorded) for recorded in read_directory(spool)]


def _expected(recorded: Recorded) -> dict[str, Any]:
    span, given = recorded.span, recorded.attributes
    index = given.get("rollout.sample_index")
    return {
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_span_id": span.parent_span_id.hex() or None,
        "name": span.name,
        "start_ns": span.start_time_unix_nano,
        "duration_ns": span.end_time_unix_nano - span.start_time_unix_nano,
        "status": _STATUS[span.status.code],
        "scope": recorded.scope,
        "run_id": recorded.resource["rollout.run.id"],
        "project": given.get("rollout.project_name"),
        "experiment": given.get("rollout.experiment_name"),
        "step": given.get("rollout.step"),
        "sample_index": None if index is None else str(index),
        "rollout_n": given.get("rollout.rollout_n"),
        "validate": given.get("rollout.validate"),
        "kind": given.get("openinference.span.kind"),
        "input": given.get("input.value"),
        "output": given.get("output.value"),
    }


def counted(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    """Count equal rows."""
    return Counter(json.dumps(row, sort_keys=True) for row in rows)
