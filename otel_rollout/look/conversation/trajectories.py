"""Read trajectories from a table: their figures from the views, and their messages from the spans."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from otel_rollout.base import semconv, training_scores
from otel_rollout.exporting.batching import grouped
from otel_rollout.look.conversation.summary import Score, Summary, facts_of, tokens_of
from otel_rollout.look.conversation.turn import EngineRequest
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.span import Span
from otel_rollout.table import training, views
from otel_rollout.table.errors import TableError
from otel_rollout.table.filters import all_of, equals, of_steps, step_in
from otel_rollout.table.query import Engine
from otel_rollout.table.spans import span_of

_Row = Mapping[str, Any]
_TOKENS: Final = "tokens_in, tokens_out, tokens_cached"
_CALLS: Final = f"SELECT trace_id, span_id, {_TOKENS}, model, finish_reason FROM turns"  # noqa: S608
_NAMED: Final = "trace_id, run_id, project, experiment, path, step_text, name, state, start_time, seconds"
_LISTED: Final = f"{_NAMED}, {_TOKENS}, reward, reward_label"
_COUNTS: Final = ("turns", "tool_calls", "tool_errors")
_FIGURES: Final = f"{_NAMED}, {_TOKENS}, {', '.join(_COUNTS)}, error_message, error_type"
ORDER_OF_STEPS: Final = "validate, run_id, project, experiment, step, step_text"
ORDER_OF_GROUPS: Final = f"{ORDER_OF_STEPS}, TRY_CAST(sample_index AS BIGINT), sample_index, group_path"
IN_ORDER: Final = f"{ORDER_OF_GROUPS}, rollout_n, path, start_time, trace_id"
"""SQL for the order of a list of trajectories: that of their names. A null is the last."""


@dataclass(frozen=True)
class RecordedTrajectory:
    """A trajectory and its spans.

    Attributes:
        summary: identity, state, scores and counts.
        spans: all spans of its trace, each once; for a sub-trajectory, only its own spans.
        root_id: id of its root span; None if the root has not been recorded.
        token_values: name → values per token of the response, as the trainer stored them.
        calls: span id → token counts, model and finish reason of the model call.
        engine: span id → what the request took in an inference engine.
        is_part: whether it is a trajectory inside another one.
    """

    summary: Summary
    spans: Sequence[Span]
    root_id: str | None = None
    token_values: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    calls: Mapping[str, _Row] = field(default_factory=dict)
    engine: Mapping[str, EngineRequest] = field(default_factory=dict)
    is_part: bool = False

    @property
    def rows(self) -> str:
        """SQL condition that selects the rows of its spans."""
        of_trace = equals("trace_id", self.summary.trace_id)
        if not self.is_part:
            return of_trace
        return f"{of_trace} AND {equals('span_id', [span.span_id for span in self.spans])}"


def trajectories_in(engine: Engine, trace_ids: Sequence[str]) -> dict[str, RecordedTrajectory]:
    """Read trajectories by the ids of their traces; a trace without spans is left out.

    A trace without identity counts as a trajectory without a name.

    Raises:
        TableError: the table cannot be read.
    """
    if not trace_ids:
        return {}
    narrowed = engine.narrowed(equals("trace_id", list(trace_ids)), in_memory=True)
    rows = _rows_of(narrowed)
    found = _read(engine, narrowed, rows)
    nameless = [row for row in rows if row["trace_id"] not in found]
    if nameless:
        ids = equals("trace_id", sorted({row["trace_id"] for row in nameless}))
        for trace_id, each in _read(
            engine, engine.narrowed(ids, in_memory=True, are_trajectories=True), nameless
        ).items():
            found[trace_id] = replace(each, summary=replace(each.summary, path=""))
    return found


def trajectory_in(engine: Engine, trace_id: str, part: int | None = None) -> RecordedTrajectory:
    """Read a trajectory.

    Args:
        engine: queries the table.
        trace_id: id of its trace.
        part: id of a sub-trajectory's first span, to read only the sub-trajectory: this span and all spans
            below it. Spans of the sub-trajectory whose parent is missing belong to it, too. If the span is
            the trace's root, or is not recorded, the whole trace is read.

    Raises:
        TableError: none of its spans is in the table, or the table cannot be read.
    """
    whole = trajectories_in(engine, [trace_id]).get(trace_id)
    if whole is None:
        raise TableError(f"None of the spans of {trace_id} is in the table yet.")
    first = "" if part is None else f"{part:016x}"
    if first in ("", whole.root_id):
        return whole
    of_trace = equals("trace_id", trace_id)
    rows = _rows_of(engine.narrowed(of_trace))
    parents = {row["span_id"]: row["parent_span_id"] for row in rows}
    if first not in parents:
        return whole
    path = next(row["path"] for row in rows if row["span_id"] == first)
    orphans = (row for row in rows if row["path"] == path and row["parent_span_id"] not in parents)
    inside = {first, *(row["span_id"] for row in orphans if row["parent_span_id"])}
    while below := {id_ for id_, parent in parents.items() if parent in inside} - inside:
        inside |= below
    narrowed = engine.narrowed(f"{of_trace} AND {equals('span_id', sorted(inside))}", in_memory=True)
    of_part = [row for row in rows if row["span_id"] in inside]
    found = _read(narrowed, narrowed, of_part).get(trace_id)  # a score by identity names no part
    return replace(found, is_part=True) if found else whole


def _rows_of(narrowed: Engine) -> list[dict[str, Any]]:
    return narrowed.dicts(f"SELECT * FROM {views.SPANS}")  # noqa: S608


def _read(engine: Engine, narrowed: Engine, rows: Sequence[_Row]) -> dict[str, RecordedTrajectory]:
    """Read trajectories from rows.

    Args:
        engine: queries the whole table, for scores that name a trajectory by its identity.
        narrowed: queries the rows alone, for everything else.
        rows: the rows of the trajectories' spans.
    """
    spans = grouped((span_of(dict(row)) for row in rows), lambda span: span.trace_id)
    figures = narrowed.dicts(f"SELECT {_FIGURES} FROM trajectories")  # noqa: S608
    roots = narrowed.dicts("SELECT trace_id, span_id, start_ns, name FROM roots")
    root_of = {row["trace_id"]: row for row in roots}
    scores, values = _scores_of(engine, narrowed, rows)
    kinds, names = ({row[column] for row in rows} for column in ("kind", "name"))
    calls = _by_span(narrowed, _CALLS) if semconv.KIND_LLM in kinds else {}
    requests = _by_span(narrowed, "SELECT * FROM engine_requests") if semconv.ENGINE_REQUEST in names else {}
    found = {}
    for row in figures:
        trace_id, root = row["trace_id"], root_of.get(row["trace_id"])
        if root is None:
            continue
        root_id = root["span_id"] if root["name"] is not None else None
        first = next((span for span in spans[trace_id] if span.span_id == root_id), None)
        found[trace_id] = RecordedTrajectory(
            replace(
                summary_of(row),
                start_ns=root["start_ns"],
                error=(row["error_message"] or "") if row["state"] == "error" else "",
                error_type=row["error_type"] or "",
                scores=tuple(scores.get(trace_id, ())),
                facts=facts_of(first.attributes) if first else {},
            ),
            spans[trace_id],
            root_id,
            _token_values_of(values.get(trace_id, {})),
            calls.get(trace_id, {}),
            requests.get(trace_id, {}),
        )
    return found


def _by_span(narrowed: Engine, sql: str) -> dict[str, dict[str, _Row]]:
    """Return the rows of a query by trace and span."""
    found: dict[str, dict[str, _Row]] = {}
    for row in narrowed.dicts(sql):
        found.setdefault(row["trace_id"], {})[row["span_id"]] = row
    return found


def _scores_of(
    engine: Engine, narrowed: Engine, rows: Sequence[_Row]
) -> tuple[dict[str, list[Score]], dict[str, Mapping[str, str]]]:
    """Return by trace id: the newest scores, by time, and the attributes of a score with values per token.

    Scores by identity need the whole table. The whole table is queried if a step has such scores.
    """
    traces = sorted({row["trace_id"] for row in rows})
    named = of_steps(set(map(step_in, rows)) - {None})
    by_identity = f"SELECT span_id FROM {views.RECORDED} WHERE score_by = 'identity' AND {named} LIMIT 1"  # noqa: S608
    asked = engine if traces and engine.run(by_identity).num_rows else narrowed
    found = asked.dicts(
        "SELECT trace_id, name, value, label, comment, score_span_id, score_trace_id FROM newest_scores "  # noqa: S608
        f"WHERE {equals('trace_id', traces)} ORDER BY time_ns, name"
    )
    scores: dict[str, list[Score]] = {}
    values: dict[str, Mapping[str, str]] = {}
    for row in found:
        value = evaluations.value_of(row["value"], row["label"])
        scores.setdefault(row["trace_id"], []).append(
            Score(row["name"], "" if value is None else value, row["comment"] or "")
        )
        if row["name"] == training_scores.TRAINING_TOKENS and row["score_span_id"] is not None:
            values[row["trace_id"]] = _attributes(engine, row["score_trace_id"], row["score_span_id"])
    return scores, values


def _attributes(engine: Engine, trace_id: str, span_id: str) -> Mapping[str, str]:
    named = [equals("trace_id", trace_id), equals("span_id", span_id)]
    rows = engine.dicts(f"SELECT attributes FROM {views.RECORDED}{all_of(named)}")  # noqa: S608
    found: dict[str, str] = json.loads((rows[0]["attributes"] if rows else None) or "{}")
    return found


def _token_values_of(attributes: Mapping[str, str]) -> Mapping[str, Sequence[float | None]]:
    """Read the values per token from the attributes of a score ``training_tokens``."""
    values = {
        name.removeprefix(semconv.TOKENS_PREFIX): _numbers_in(text)
        for name, text in attributes.items()
        if name.startswith(semconv.TOKENS_PREFIX)
    }
    return {name: numbers for name, numbers in values.items() if numbers}


def _numbers_in(text: str) -> list[float | None]:
    """Return the numbers of a JSON array, with None for an entry that is no number."""
    try:
        values = json.loads(text)
    except ValueError:
        return []
    return [
        float(value) if isinstance(value, (int, float)) else None
        for value in (values if isinstance(values, list) else [])
    ]


def summaries_of(engine: Engine, conditions: Sequence[str], limit: int | None = None) -> list[Summary]:
    """Return the first trajectories that meet SQL conditions, in the order of ``list``.

    The only score of these summaries is the reward.

    Raises:
        TableError: the table cannot be read.
    """
    end = "" if limit is None else f" LIMIT {limit}"
    found = f"SELECT {_LISTED} FROM trajectories{all_of(conditions)} ORDER BY {IN_ORDER}{end}"  # noqa: S608
    rows = engine.dicts(found)
    return [summary_of(row) for row in rows]


def summary_of(row: _Row) -> Summary:
    """Return a trajectory's summary from a row of the view ``trajectories``, with or without its counts."""
    reward = evaluations.value_of(row.get("reward"), row.get("reward_label"))
    return Summary(
        trace_id=row["trace_id"],
        run=row["run_id"] or "",
        project=row["project"] or "",
        experiment=row["experiment"] or "",
        path=row["path"],
        step_text=row.get("step_text") or "",
        name=row["name"] or "",
        state=row["state"],
        start_ns=int(row["start_time"].timestamp() * 1e6) * 1000 if row["start_time"] else 0,
        seconds=row["seconds"],
        scores=() if reward is None else (Score("reward", reward),),
        tokens=tokens_of(row),
        **{name: row.get(name, 0) for name in _COUNTS},
    )


def is_passed_over(engine: Engine, recorded: RecordedTrajectory) -> bool:
    """Return whether the trainer scored other trajectories of the step, and not this one.

    A trainer never scores a sub-trajectory.

    Raises:
        TableError: the table cannot be read.
    """
    named = equals("score_name", training_scores.TRAINED)
    any_named = f"SELECT span_id FROM {views.RECORDED} WHERE {named} LIMIT 1"  # noqa: S608
    if recorded.is_part or not engine.run(any_named).num_rows:
        return False
    conditions = [equals("trace_id", recorded.summary.trace_id), equals("reason", training.PASSED_OVER)]
    return bool(engine.run(f"SELECT trace_id FROM training{all_of(conditions)}").num_rows)  # noqa: S608
