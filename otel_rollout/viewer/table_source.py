"""Read trajectories from a rollout table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from otel_rollout.base import semconv, training_scores
from otel_rollout.forwarder.detokenizer import Detokenizer
from otel_rollout.otlp import evaluations
from otel_rollout.table import training, views
from otel_rollout.table.errors import TableError
from otel_rollout.table.filters import all_of, equals
from otel_rollout.table.query import Engine
from otel_rollout.table.row_set import dicts_of
from otel_rollout.table.select import literal
from otel_rollout.table.spans import span_of
from otel_rollout.table.store import Store
from otel_rollout.viewer.errors import ViewerError
from otel_rollout.viewer.reference import Reference
from otel_rollout.viewer.summary import VALIDATION, Score, Summary, Tokens, path_of

if TYPE_CHECKING:
    from deltalake import DeltaTable

MAX_LISTED: Final = 100
"""Maximum trajectories of a list."""
_TRACE_DIGITS: Final = 32
_RUN: Final = "run_id, project, experiment"
_NAMED: Final = f"trace_id, {_RUN}, step, sample_index, rollout_n, validate, name, start_time"
_ROOT_COLUMNS: Final = f"{_NAMED}, duration_ns / 1e9 AS seconds"
_STATE: Final = "CASE WHEN status = 'error' THEN 'error' ELSE 'ok' END AS state"
_LISTED: Final = f"{_NAMED}, state, seconds, tokens_in, tokens_out, tokens_cached, reward, reward_label"
_IN_ORDER: Final = (
    " ORDER BY validate, step NULLS LAST, TRY_CAST(sample_index AS BIGINT) NULLS LAST, sample_index, "
    "rollout_n, start_time"
)


class TableSource:
    """Read trajectories from a table; see :class:`otel_rollout.viewer.source.Source`.

    A reference is looked up among the table's roots, without the views: a view reads more of the table.

    Args:
        store: the table.
        opened: the version of the table to read; by default the newest.
        run: SQL condition of the run to read; by default the newest that has what is looked for.

    Raises:
        ViewerError: the table cannot be read.
    """

    def __init__(self, store: Store, opened: DeltaTable | None = None, run: str = "true") -> None:
        try:
            self._engine = Engine(store.open() if opened is None else opened)
        except TableError as error:
            raise ViewerError(str(error)) from error
        self.location = store.location.uri
        self.notes: tuple[str, ...] = ()
        self._run = run

    def find(self, reference: Reference | None) -> list[Summary]:
        """Return the matching trajectories of the newest run that has any; at most a page of them.

        Without a reference, return the first trajectories of the newest run.
        """
        if reference is None:
            return self._newest_run()
        for run in self._runs_of(reference):
            of_run = [*(equals(column, value) for column, value in run.items()), *_conditions(reference)]
            found = self._matching(reference, of_run, True) or self._matching(reference, of_run, False)
            if found and (reference.trace or any(reference.is_name_of(summary) for summary in found)):
                return found
            if found:
                return self._listed(of_run, reference, len(found))
        return []

    def spans(self, trace_id: str) -> list[ReadableSpan]:
        """Return all spans of a trace, and the scores that name its trajectory by identity."""
        return self.traces([trace_id])[trace_id]

    def traces(self, trace_ids: Sequence[str]) -> dict[str, list[ReadableSpan]]:
        """Return all spans of each trace, by its id; see :func:`traces_of`."""
        try:
            return traces_of(self._engine, trace_ids)
        except TableError as error:
            raise ViewerError(str(error)) from error

    def is_passed_over(self, trace_id: str) -> bool:
        """Return whether the trainer named others of the step; see :func:`is_passed_over`."""
        try:
            return is_passed_over(self._engine, trace_id)
        except TableError as error:
            raise ViewerError(str(error)) from error

    def decoder(self, name: str) -> Detokenizer | None:
        """Return None: spans in the table have the text of their token ids."""
        return None

    def _newest_run(self) -> list[Summary]:
        for ended in ("is_root", "score_name IS NULL"):  # a run may have running trajectories alone
            conditions = [self._run, ended, "validate IS NOT NULL"]
            newest = self._rows(views.RECORDED, "run_id", conditions, " ORDER BY start_ns DESC LIMIT 1")
            if newest:
                return self._listed([self._run, equals("run_id", newest[0]["run_id"])])
        return []

    def _runs_of(self, reference: Reference) -> list[dict[str, str | None]]:
        """Return the runs that have a match; see :func:`runs_with`."""
        try:
            return runs_with(self._engine, [self._run, *_conditions(reference)], reference.matches)
        except TableError as error:
            raise ViewerError(str(error)) from error

    def _matching(self, reference: Reference, conditions: list[str], is_ended: bool) -> list[Summary]:
        """Return the trajectories that a reference matches, without scores and tokens."""
        if is_ended:
            ended = ["is_root", "validate IS NOT NULL", *conditions]
            rows = self._rows(views.RECORDED, f"{_ROOT_COLUMNS}, {_STATE}", ended)
        else:
            rows = self._rows("roots", f"{_ROOT_COLUMNS}, state", conditions)
        found = {row["trace_id"]: _summary(row) for row in rows}
        return [summary for summary in found.values() if reference.matches(summary)]

    def _listed(
        self, conditions: list[str], reference: Reference | None = None, count: int | None = None
    ) -> list[Summary]:
        """Return a page of trajectories with scores and tokens."""
        if count is None:
            count = self._rows("trajectories", "count(*) AS number", conditions)[0]["number"]
        limit = "" if reference else f" LIMIT {MAX_LISTED}"
        rows = self._rows("trajectories", _LISTED, conditions, _IN_ORDER + limit)
        found = [_summary(row) for row in rows]
        found = [summary for summary in found if reference is None or reference.matches(summary)][:MAX_LISTED]
        if count and count > len(found):
            self.notes = (f"The first {len(found)} of {count}; `otel-rollout list` filters and sorts.",)
        return found

    def _rows(self, source: str, columns: str, conditions: list[str], end: str = "") -> list[dict[str, Any]]:
        sql = f"SELECT {columns} FROM {source}{all_of(conditions)}{end}"  # noqa: S608
        try:
            return dicts_of(self._engine.run(sql))
        except TableError as error:
            raise ViewerError(str(error)) from error


def summaries_of(engine: Engine, conditions: Sequence[str], limit: int) -> list[Summary]:
    """Return the first trajectories that meet SQL conditions, in the order of their names.

    Raises:
        TableError: the table cannot be read.
    """
    rows = engine.run(f"SELECT {_LISTED} FROM trajectories{all_of(conditions)}{_IN_ORDER} LIMIT {limit}")  # noqa: S608
    return [_summary(row) for row in dicts_of(rows)]


def runs_with(
    engine: Engine, conditions: Sequence[str], has: Callable[[Summary], bool] = lambda summary: True
) -> list[dict[str, str | None]]:
    """Return run, project and experiment of trajectories, those of the trajectory that began last first.

    A trajectory that runs counts, too.

    Args:
        engine: the table.
        conditions: SQL conditions that spans of the trajectories meet.
        has: whether a trajectory is meant, which has a path and a trace id; by default each is.

    Raises:
        TableError: the table cannot be read.
    """
    wanted = all_of([*conditions, "validate IS NOT NULL", "score_name IS NULL"])
    rows = engine.run(
        f"SELECT {_RUN}, trace_id, step, sample_index, rollout_n, validate FROM {views.RECORDED}{wanted} "  # noqa: S608
        f"GROUP BY {_RUN}, trace_id, step, sample_index, rollout_n, validate ORDER BY min(start_ns) DESC"
    )
    found = [
        tuple(row[name] for name in _RUN.split(", "))
        for row in dicts_of(rows)
        if has(Summary(row["trace_id"], path=path_of(_identity(row))))
    ]
    return [dict(zip(_RUN.split(", "), run, strict=True)) for run in dict.fromkeys(found)]


def is_passed_over(engine: Engine, trace_id: str) -> bool:
    """Return whether the trainer named others of a trajectory's step, and not the trajectory.

    Raises:
        TableError: the table cannot be read.
    """
    named = equals("score_name", training_scores.TRAINED)
    if not engine.run(f"SELECT span_id FROM {views.RECORDED} WHERE {named} LIMIT 1").num_rows:  # noqa: S608
        return False
    conditions = [equals("trace_id", trace_id), equals("reason", training.PASSED_OVER)]
    return bool(engine.run(f"SELECT trace_id FROM training{all_of(conditions)}").num_rows)  # noqa: S608


def traces_of(engine: Engine, trace_ids: Sequence[str]) -> dict[str, list[ReadableSpan]]:
    """Return all spans of each trace, by its id, and the scores that name its trajectory by identity.

    Raises:
        TableError: the table cannot be read.
    """
    found: dict[str, list[ReadableSpan]] = {trace_id: [] for trace_id in trace_ids}
    if not found:
        return found
    of_traces = equals("trace_id", list(found))
    for row in dicts_of(engine.run(f"SELECT * FROM {views.RECORDED} WHERE {of_traces}")):  # noqa: S608
        found[row["trace_id"]].append(span_of(row))
    for trace_id, scores in _scores_by_identity(engine, found).items():
        found[trace_id] += scores
    return found


def _scores_by_identity(
    engine: Engine, traces: Mapping[str, Sequence[ReadableSpan]]
) -> dict[str, list[ReadableSpan]]:
    """Return the scores by identity of ended trajectories as evaluation spans, by trace id."""
    roots = {
        trace_id: root
        for trace_id, spans in traces.items()
        if (root := next((span for span in spans if span.parent is None), None))
    }
    steps = {(root.attributes or {}).get(semconv.STEP) for root in roots.values()}
    named = equals("step", [step if isinstance(step, int) else None for step in steps])
    sql = f"SELECT span_id FROM {views.RECORDED} WHERE score_by = 'identity' AND {named} LIMIT 1"  # noqa: S608
    if not roots or not engine.run(sql).num_rows:
        return {}
    sql = f"SELECT * FROM newest_scores WHERE source = 'identity' AND {equals('trace_id', list(roots))}"  # noqa: S608
    found: dict[str, list[ReadableSpan]] = {}
    rows = dicts_of(engine.run(sql))
    stored = {row["trace_id"] for row in rows if row["name"] == training_scores.TRAINING_TOKENS}
    values = _token_values(engine, sorted(stored))
    for row in rows:
        given = found.setdefault(row["trace_id"], [])
        has_values = row["name"] == training_scores.TRAINING_TOKENS
        further = values.get(row["trace_id"], {}) if has_values else {}
        given.append(_evaluation_span(row, len(given) + 1, roots[row["trace_id"]], further))
    return found


def _token_values(engine: Engine, traces: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the values per token of trajectories, as attributes of the score that has them."""
    if not traces:
        return {}
    rows = engine.run(
        "SELECT given.trajectory, span.attributes FROM identity_scores AS given JOIN spans AS span "  # noqa: S608
        "ON given.trace_id = span.trace_id AND given.span_id = span.span_id "
        f"WHERE given.matches = 1 AND given.name = {literal(training_scores.TRAINING_TOKENS)} "
        f"AND {equals('given.trajectory', traces)} ORDER BY given.time_ns"
    )
    return {
        row["trajectory"]: {
            name: value
            for name, value in json.loads(row["attributes"] or "{}").items()
            if name.startswith(semconv.TOKENS_PREFIX)
        }
        for row in dicts_of(rows)
    }


def _conditions(reference: Reference) -> list[str]:
    """Return conditions that all trajectories matching a reference meet."""
    if len(reference.trace) == _TRACE_DIGITS:
        return [equals("trace_id", reference.trace)]
    if reference.trace:
        return [f"trace_id LIKE {literal(reference.trace + '%')}"]
    parts = reference.path.split("/")
    is_validation = parts[0] == VALIDATION
    step = parts[1 if is_validation and len(parts) > 1 else 0]
    conditions = [equals("validate", is_validation)]
    if step == "-":
        conditions.append("step IS NULL")
    elif step.removeprefix("-").isdecimal():
        conditions.append(f"step = {int(step)}")
    return conditions


def _identity(row: Mapping[str, Any]) -> dict[str, Any]:
    named = {
        semconv.STEP: row["step"],
        semconv.SAMPLE_INDEX: row["sample_index"],
        semconv.ROLLOUT_N: row["rollout_n"],
        semconv.VALIDATE: row["validate"],
    }
    return {name: value for name, value in named.items() if value is not None}


def _summary(row: Mapping[str, Any]) -> Summary:
    """Return a trajectory's summary; scores and tokens if the row has them."""
    reward = _value(row.get("reward"), row.get("reward_label"))
    return Summary(
        trace_id=row["trace_id"],
        run=row["run_id"] or "",
        project=row["project"] or "",
        experiment=row["experiment"] or "",
        path=path_of(_identity(row)),
        name=row["name"] or "",
        state=row["state"],
        start_ns=int(row["start_time"].timestamp() * 1e6) * 1000,
        seconds=row["seconds"],
        scores=() if reward is None else (Score("reward", reward),),
        tokens=Tokens(row.get("tokens_in"), row.get("tokens_out"), row.get("tokens_cached")),
    )


def _value(number: float | None, label: str | None) -> evaluations.Value | None:
    """Return a score's value from its columns; None without a score."""
    is_bool = number is not None and label in ("True", "False")
    return label == "True" if is_bool else label if number is None else number


def _evaluation_span(
    row: Mapping[str, Any], number: int, root: ReadableSpan, further: Mapping[str, str]
) -> ReadableSpan:
    """Return a score by identity as an evaluation span of the trajectory."""
    value = _value(row["value"], row["label"])
    evaluation = evaluations.attributes_of(
        row["name"], "" if value is None else value, row["comment"], row["origin"]
    )
    context = root.get_span_context()
    trace_id = context.trace_id if context else 0
    return ReadableSpan(
        "score",
        context=SpanContext(trace_id, number, is_remote=False),
        parent=context,
        resource=root.resource,
        attributes={**evaluation, **further},
        start_time=row["time_ns"],
        end_time=row["time_ns"],
    )
