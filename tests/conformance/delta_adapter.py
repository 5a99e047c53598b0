"""Read a table of spans by deltalake's own query engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, QueryBuilder

from tests.conformance.backend import Operation, Score, inputs

_LABELS_OF_BOOL = {"True": True, "False": False}


class DeltaAdapter:
    """Reads the rows of a table that the exporter begins."""

    exporter = "delta"

    def __init__(self, directory: Path) -> None:
        self._uri = str(directory / "table")
        self.variables = {"OTEL_ROLLOUT_DELTA_URI": self._uri}

    def read(self, project: str) -> list[Operation]:
        query = (
            "SELECT * FROM spans WHERE trace_id IN (SELECT trace_id FROM spans WHERE coalesce(project, "
            f"""resource) = '{project}' OR resource LIKE '%"rollout.project_name":"{project}"%')"""
        )
        found = QueryBuilder().register("spans", DeltaTable(self._uri)).execute(query).read_all()
        columns = {name: found.column(name).to_pylist() for name in found.schema.names}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        operations = {row["span_id"]: _operation(row) for row in rows}
        for _, _, scored, name, score in sorted(_scores(rows), key=lambda one: one[:2]):
            if scored in operations:
                operations[scored].scores[name] = score
        return list(operations.values())

    def shows(self, value: Any) -> Any:
        return value


def _operation(row: dict[str, Any]) -> Operation:
    others = json.loads(row["attributes"] or "{}")
    raised = [e["attributes"] for e in json.loads(row["events"] or "[]") if e["name"] == "exception"]
    return Operation(
        id=row["span_id"],
        parent_id=row["parent_span_id"],
        trace=row["trace_id"],
        name=row["name"],
        start_us=row["start_ns"] // 1000,
        end_us=(row["start_ns"] + row["duration_ns"]) // 1000,
        inputs=inputs(_payload(row, others, "input")),
        output=_payload(row, others, "output"),
        failed=row["status"] == "error",
        message=(row["error_message"] or "") if row["status"] == "error" else "",
        exception=(raised[-1]["exception.type"], raised[-1]["exception.message"]) if raised else None,
        identity=_identity(row, others),
        is_outside=row["score_origin"] == "outside",
    )


def _identity(row: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    index = row["sample_index"]
    if index is not None and index.removeprefix("-").isdecimal():
        index = others.get("rollout.sample_index", int(index))
    found = {
        "experiment_name": row["experiment"],
        "step": row["step"],
        "sample_index": index,
        "rollout_n": row["rollout_n"],
        "validate": row["validate"],
    }
    return {name: value for name, value in found.items() if value is not None}


def _payload(row: dict[str, Any], others: dict[str, Any], side: str) -> Any:
    if row[side] is None or f"{side}.mime_type" in others:
        return row[side]
    try:
        return json.loads(row[side])
    except ValueError:  # a library said JSON, and recorded something else
        return row[side]


def _scores(rows: list[dict[str, Any]]) -> list[tuple[int, str, str, str, Score]]:
    """Return time, comment, the scored span, name and score of each score."""
    found = []
    for row in rows:
        if row["score_name"] is not None:
            comment, time_ns = row["score_comment"] or "", row["start_ns"]
            score = Score(_value(row["score_value"], row["score_label"]), time_ns // 1000, comment)
            found.append((time_ns, comment, row["parent_span_id"], row["score_name"], score))
        others = json.loads(row["attributes"] or "{}")
        for entry in row["scores"] or ():
            value = others.get("rollout.score." + entry["name"], _value(entry["value"], entry["label"]))
            score = Score(value, entry["time_ns"] // 1000, "")
            found.append((entry["time_ns"], "", row["span_id"], entry["name"], score))
    return found


def _value(value: float | None, label: str | None) -> Any:
    if value is None:
        return label
    return value if label is None else _LABELS_OF_BOOL[label]
