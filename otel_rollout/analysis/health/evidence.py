"""Name the trajectories of findings as ``otel-rollout show`` takes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from otel_rollout.analysis.health.findings import Finding
from otel_rollout.table import filters

if TYPE_CHECKING:
    from otel_rollout.analysis.health.scope import Scope

_TRACE: Final = re.compile(r"[0-9a-f]{32}")


def with_names(scope: Scope, findings: Sequence[Finding]) -> Iterable[Finding]:
    """Return findings whose evidence is ``step/sample/rollout``; a trace id where several have that name."""
    names = _names(scope, {trace for each in findings for trace in each.evidence if _TRACE.fullmatch(trace)})
    return [
        replace(each, evidence=tuple(names.get(trace, trace) for trace in each.evidence)) for each in findings
    ]


def _names(scope: Scope, traces: set[str]) -> dict[str, str]:
    """Return trace id → name, for trajectories whose name no other trajectory of the table has."""
    if not traces:
        return {}
    chosen = filters.equals("trace_id", sorted(traces))
    columns = "step, sample_index, rollout_n, validate"
    rows = scope.rows(
        f"SELECT * FROM (SELECT trace_id, {columns}, count(*) OVER (PARTITION BY {columns}) AS number "  # noqa: S608
        f"FROM roots) AS named WHERE number = 1 AND {chosen}"
    )
    return {
        row["trace_id"]: _path(row["step"], row["sample_index"], row["rollout_n"], row["validate"])
        for row in rows
    }


def _path(step: int | None, sample: str | None, rollout: int | None, validate: bool) -> str:
    parts = ("-" if part is None else str(part) for part in (step, sample, rollout))
    return f"{'validation/' if validate else ''}{'/'.join(parts)}"
