"""Make rows of the table from spans, and Arrow batches from rows."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from otel_rollout.base import semconv
from otel_rollout.exporting.batching import chunks
from otel_rollout.otlp import evaluations, model_calls
from otel_rollout.otlp.origin import Resource
from otel_rollout.otlp.score_identity import is_by_identity
from otel_rollout.otlp.span import Event, Link, Span
from otel_rollout.table import call_columns, schema
from otel_rollout.table.json_text import MAX_INT, MIN_INT, as_json

if TYPE_CHECKING:
    from arro3.core import Array, RecordBatch

Row: TypeAlias = dict[str, Any]
"""Column → value; a missing column is null."""

SCORE_BY_TRACE: Final = "trace"
SCORE_BY_IDENTITY: Final = "identity"
STATUS: Final = {0: "unset", 1: "ok", 2: "error"}
MIME_TYPES: Final = {"input": semconv.INPUT_MIME_TYPE, "output": semconv.OUTPUT_MIME_TYPE}
"""Column → the attribute with its MIME type. Column ``attributes`` has this attribute unless the type is
JSON, and has null if the value has no type.
"""


class Held(NamedTuple):
    """The column that holds an attribute of one type; its integers lie from ``minimum`` to ``maximum``."""

    column: str
    type_: type
    minimum: int = MIN_INT
    maximum: int = MAX_INT


_COUNT: Final = (int, 0, model_calls.MAX_COUNT)
OF_SPAN: Final[Mapping[str, Held]] = {
    semconv.PROJECT_NAME: Held("project", str),
    semconv.EXPERIMENT_NAME: Held("experiment", str),
    semconv.STEP: Held("step", int),
    semconv.ROLLOUT_N: Held("rollout_n", int),
    semconv.VALIDATE: Held("validate", bool),
    semconv.GROUP_ID: Held("group_id", str),
    semconv.GROUP_SIZE: Held("group_size", int),
    semconv.AGENT_NAME: Held("agent_name", str),
    semconv.POLICY_VERSION_MIN: Held("policy_version_min", int),
    semconv.POLICY_VERSION_MAX: Held("policy_version_max", int),
    semconv.SPAN_KIND: Held("kind", str),
    semconv.GEN_AI_TOOL_NAME: Held("tool_name", str),
    semconv.GEN_AI_REQUEST_MODEL: Held("model", str),
    semconv.GEN_AI_USAGE_INPUT_TOKENS: Held("tokens_in", *_COUNT),
    semconv.GEN_AI_USAGE_OUTPUT_TOKENS: Held("tokens_out", *_COUNT),
    semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: Held("tokens_cached", *_COUNT),
    semconv.TURN_CONTINUES: Held("continues", str),
    semconv.TURN_SHARED: Held("shared", int),
    semconv.TURN_LENGTH: Held("turn_length", int),
    semconv.BREAK_OF: Held("break_of", str),
    semconv.BREAK_TOKEN: Held("break_token", int),
    semconv.BREAK_REMOVED: Held("break_removed", int),
    semconv.BREAK_ADDED: Held("break_added", int),
    semconv.BREAK_KIND: Held("break_kind", str),
    semconv.BREAK_WAS: Held("break_was", str),
    semconv.BREAK_BECAME: Held("break_became", str),
    semconv.INPUT_VALUE: Held("input", str),
    semconv.OUTPUT_VALUE: Held("output", str),
}
"""Attribute of a span → its column. A value of another type stays in column ``attributes``."""
IN_TEXT: Final[Mapping[str, str]] = {semconv.STEP: "step_text", semconv.ROLLOUT_N: "rollout_text"}
"""Attribute of a span → the column that holds a value that is no integer, as text."""
OF_RESOURCE: Final[Mapping[str, Held]] = {
    semconv.RUN_ID: Held("run_id", str),
    semconv.SERVICE_NAME: Held("service", str),
}
OF_SCORE: Final = {
    semconv.GEN_AI_EVALUATION_NAME: "score_name",
    semconv.GEN_AI_EVALUATION_SCORE_LABEL: "score_label",
    semconv.GEN_AI_EVALUATION_EXPLANATION: "score_comment",
    semconv.SCORE_ORIGIN: "score_origin",
}
"""Text attribute of an evaluation span → its column. ``score_value`` holds the number."""


_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
"""Text of an integer as Python writes it; ``01`` is another text."""
_NEAR: Final = 256
"""Rows that become columns together: so few stay in the processor's cache."""
_NOWHERE: Final = Held("", type(NotImplemented))
"""Stand-in for an attribute that no column holds."""


def row_of(span: Span) -> Row:
    """Return a span's row."""
    return rows_of([span])[0]


def rows_of(spans: Sequence[Span]) -> list[Row]:
    """Return the rows of spans; a resource that spans share is read once."""
    of_resource = functools.cache(_of_resource)
    return [_row_of(span, of_resource(span.resource)) for span in spans]


def _of_resource(resource: Resource) -> Row:
    """Return the columns of a resource."""
    row: Row = {}
    others = _without_held(row, resource.attributes, OF_RESOURCE)
    row["resource"] = as_json(others) if others else None
    return row


def _row_of(span: Span, of_resource: Row) -> Row:
    attributes = span.attributes
    row = _of_fields(span) | of_resource
    others = _without_held(row, attributes, OF_SPAN)
    if "kind" in row and (kind := row["kind"].upper()) in semconv.SPAN_KINDS:
        row["kind"] = kind
    _add_sample_index(row, others)
    _add_steps_in_text(row, others)
    _add_content_types(row, others)
    _add_score(row, others, attributes)
    is_ended = row["duration_ns"] is not None
    is_root = row["is_root"] = not span.parent_id and "score_name" not in row and is_ended
    if is_root or (is_ended and row.get("kind") == semconv.KIND_AGENT and "validate" in row):
        _add_repeated_scores(row, others, attributes, span.end_ns)
    call_columns.add(row, span)
    if not (span.has_failed or span.has_succeeded) and row.get("kind") == semconv.KIND_TOOL:
        row["status"] = None
    _add_error(row, others, span)
    row["attributes"] = as_json(others) if others else None
    return row


def _of_fields(span: Span) -> Row:
    """Return the columns of the span's fields."""
    start, end = min(span.start_ns, MAX_INT), min(span.end_ns, MAX_INT)
    has_end = end > 0 and not span.is_running
    return {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_span_id": span.parent_id or None,
        "name": span.name,
        "scope": span.scope.name,
        "start_time": start // 1000 if schema.has_time(start) else None,
        "start_ns": start,
        "duration_ns": max(0, end - start) if has_end else None,  # a clock may be set back
        "status": STATUS.get(span.status, "unset"),
        "events": as_json([_event(event) for event in span.events]) if span.events else None,
        "links": as_json([_link(link) for link in span.links]) if span.links else None,
    }


def _event(event: Event) -> dict[str, Any]:
    return {"name": event.name, "time_ns": event.time_ns, "attributes": event.attributes}


def _link(link: Link) -> dict[str, Any]:
    return {"trace_id": link.trace_id, "span_id": link.span_id, "attributes": link.attributes}


def _without_held(row: Row, attributes: Mapping[str, Any], held: Mapping[str, Held]) -> dict[str, Any]:
    """Put attributes into their columns; return the others."""
    others = {}
    for name, value in attributes.items():
        column, type_, minimum, maximum = held.get(name, _NOWHERE)
        if type(value) is type_ and (type(value) is not int or minimum <= value <= maximum):
            row[column] = value
        else:
            others[name] = value
    return others


def _fits(number: int) -> bool:
    """Return whether a column can hold an integer."""
    return MIN_INT <= number <= MAX_INT


def _add_sample_index(row: Row, others: dict[str, Any]) -> None:
    """Add the dataset row as text. Text that looks like a number, and other types, stay an attribute too."""
    index = others.get(semconv.SAMPLE_INDEX)
    if type(index) is int and _fits(index):
        row["sample_index"] = str(index)
        del others[semconv.SAMPLE_INDEX]
    elif type(index) is str:
        row["sample_index"] = index
        if not index.removeprefix("-").isdecimal():
            del others[semconv.SAMPLE_INDEX]
    elif type(index) in (bool, float):
        row["sample_index"] = str(index)


def _add_steps_in_text(row: Row, others: Mapping[str, Any]) -> None:
    """Add a step or rollout that did not come as an integer of 64 bits; its attribute stays."""
    for name, column in IN_TEXT.items():
        if name in others:
            text = str(others[name])
            number = integer_in(text) if type(others[name]) is str else None
            row[column if number is None else OF_SPAN[name].column] = text if number is None else number


def integer_in(text: str) -> int | None:
    """Convert the text of a step or rollout to an integer of 64 bits; None for any other text."""
    return int(text) if _INTEGER.fullmatch(text) and _fits(int(text)) else None


def _add_content_types(row: Row, others: dict[str, Any]) -> None:
    """Remove the MIME type of an input or output if it is JSON; set a missing one to null."""
    for column, name in MIME_TYPES.items():
        if column in row:
            if others.get(name) == semconv.JSON_MIME_TYPE:
                del others[name]
            else:
                others.setdefault(name, None)


def _add_score(row: Row, others: dict[str, Any], attributes: Mapping[str, Any]) -> None:
    """Add the score that an evaluation span records."""
    score = evaluations.recorded_in(attributes, row["start_ns"])
    if score is None:
        return
    row["score_by"] = SCORE_BY_IDENTITY if is_by_identity(attributes) else SCORE_BY_TRACE
    for name, column in OF_SCORE.items():
        if type(held := others.get(name)) is str:
            row[column] = held
            del others[name]
    number = others.get(semconv.GEN_AI_EVALUATION_SCORE_VALUE)
    row["score_value"], label = _value_and_label(number)
    row.setdefault("score_label", label)
    if _is_finite(number):
        del others[semconv.GEN_AI_EVALUATION_SCORE_VALUE]


def _add_repeated_scores(
    row: Row, others: dict[str, Any], attributes: Mapping[str, Any], end_ns: int
) -> None:
    """Add the scores that the span of a trajectory repeats; an integer stays an attribute too."""
    scores = evaluations.repeated_in(attributes, end_ns)
    row["scores"] = [_repeated(score) for score in scores] or None
    for score in scores:
        name = semconv.SCORE_PREFIX + score.name
        if isinstance(others[name], (bool, str)) or _is_finite(others[name]):
            del others[name]
        if score.is_dated and _fits(score.time_ns):
            del others[semconv.SCORE_TIME_PREFIX + score.name]


def _repeated(score: evaluations.Evaluation) -> Row:
    value, label = _value_and_label(score.value)
    time_ns = score.time_ns if score.is_dated and _fits(score.time_ns) else None
    return {"name": score.name, "value": value, "label": label, "time_ns": time_ns}


def _value_and_label(value: Any) -> tuple[float | None, str | None]:
    """Return a score as a number and as a label; a bool is both."""
    if isinstance(value, bool):
        return float(value), str(value)
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value), None
    return None, None if value is None else str(value)


def _is_finite(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _add_error(row: Row, others: dict[str, Any], span: Span) -> None:
    """Add class and message of the error that ended the span."""
    type_ = others.get(semconv.ERROR_TYPE)
    if type(type_) is str:
        row["error_type"] = type_
        del others[semconv.ERROR_TYPE]
    if span.has_failed:
        row.setdefault("error_type", _text(span.raised.get(semconv.EXCEPTION_TYPE)))
        row["error_message"] = _text(span.message or span.raised.get(semconv.EXCEPTION_MESSAGE))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def batch_of(rows: Sequence[Row]) -> RecordBatch:
    """Return rows as an Arrow batch with all columns of the table."""
    from arro3.core import RecordBatch

    columns: dict[str, list[Any]] = {name: [] for name in set().union(*rows)}
    for part in chunks(rows, _NEAR):
        for name, values in columns.items():
            values += map(dict.get, part, itertools.repeat(name))
    nothing = [None] * len(rows)
    arrays: dict[str, Any] = {
        column.name: _array(columns.get(column.name, nothing), column) for column in schema.COLUMNS
    }
    return RecordBatch.from_pydict(arrays, schema=schema.arrow_schema())


def _array(values: Sequence[Any], column: schema.Column) -> Array:
    from arro3.core import Array, DataType

    if column.type_ == "scores":
        return _array_of_scores(values)
    type_ = schema.data_type(column.type_)
    if column.type_ == "timestamp":  # made from integers: deltalake's Arrow library makes none from values
        return Array(values, DataType.int64()).cast(type_)
    return Array(values, type_)


def _array_of_scores(values: Sequence[Sequence[Row] | None]) -> Array:
    from arro3.core import Array, DataType, list_array, struct_array

    entries = [entry for value in values for entry in value or ()]
    offsets = [0, *itertools.accumulate(len(value) if value else 0 for value in values)]
    fields = [
        Array([entry[name] for entry in entries], schema.data_type(type_))
        for name, type_ in schema.SCORE_FIELDS
    ]
    return list_array(
        Array(offsets, DataType.int32()),
        struct_array(fields, fields=schema.score_fields()),
        type=schema.arrow_schema().field("scores"),
        mask=Array([value is None for value in values], DataType.bool()),
    )
