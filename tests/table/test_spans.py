"""A row of the table becomes the span that an exporter got."""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from otel_rollout.base import semconv
from otel_rollout.otlp import sdk
from otel_rollout.table import schema
from otel_rollout.table.rows import row_of
from otel_rollout.table.spans import span_of
from tests.sdk_spans import decoded

ATTRIBUTES = {
    semconv.PROJECT_NAME: "project",
    semconv.STEP: 3,
    semconv.SAMPLE_INDEX: 7,
    semconv.ROLLOUT_N: 0,
    semconv.VALIDATE: False,
    semconv.SPAN_KIND: semconv.KIND_AGENT,
    semconv.INPUT_VALUE: '{"a":1}',
    semconv.INPUT_MIME_TYPE: semconv.JSON_MIME_TYPE,
    semconv.OUTPUT_VALUE: "text",
    semconv.OUTPUT_MIME_TYPE: semconv.TEXT_MIME_TYPE,
    semconv.ERROR_TYPE: "ValueError",
    semconv.SCORE_PREFIX + "reward": 0.5,
    semconv.SCORE_TIME_PREFIX + "reward": 17,
    semconv.SCORE_PREFIX + "solved": True,
    semconv.SCORE_PREFIX + "grade": "good",
    "of.mine": [1, 2],
}


def restored(span: ReadableSpan) -> ReadableSpan:
    row = row_of(decoded(span))
    return sdk.readable(span_of({name: row.get(name) for name in schema.NAMES}))


def span(attributes: dict[str, object], parent: SpanContext | None = None) -> ReadableSpan:
    return ReadableSpan(
        "agent_loop",
        SpanContext(5, 6, is_remote=False, trace_flags=TraceFlags(1)),
        parent,
        Resource({"service.name": "training", semconv.RUN_ID: "run-1", "host": "a"}),
        attributes,
        [Event("exception", {semconv.EXCEPTION_MESSAGE: "no"}, 11)],
        status=Status(StatusCode.ERROR, "no"),
        start_time=10,
        end_time=30,
        instrumentation_scope=InstrumentationScope("otel_rollout"),
    )


def test_span_that_runs_has_no_duration_and_is_no_root_yet() -> None:
    """A trajectory's root span, while it runs."""
    ended = span(ATTRIBUTES)
    running = ReadableSpan(ended.name, ended.context, attributes=ATTRIBUTES, start_time=10)
    row = row_of(decoded(running))
    assert (row["duration_ns"], row["is_root"]) == (None, False)
    assert restored(running).end_time is None


def test_span_returns_from_its_row() -> None:
    """Ids, times, status, attributes with their types, events and resource are as before."""
    found = restored(span(ATTRIBUTES))
    given = span(ATTRIBUTES)
    assert dict(found.attributes or {}) == ATTRIBUTES
    assert dict(found.resource.attributes) == dict(given.resource.attributes)
    for name in ("name", "context", "parent", "start_time", "end_time", "instrumentation_scope"):
        assert getattr(found, name) == getattr(given, name)
    assert (found.status.status_code, found.status.description) == (StatusCode.ERROR, "no")
    events = [(event.name, event.timestamp, dict(event.attributes or {})) for event in found.events]
    assert events == [("exception", 11, {semconv.EXCEPTION_MESSAGE: "no"})]
    assert type((found.attributes or {})[semconv.SAMPLE_INDEX]) is int


def test_row_of_digits_as_text_stays_text() -> None:
    """A dataset row '7' is not the row 7."""
    found = restored(span({semconv.SAMPLE_INDEX: "7", semconv.VALIDATE: True}))
    assert (found.attributes or {})[semconv.SAMPLE_INDEX] == "7"


def test_score_returns_from_its_row() -> None:
    """A bool keeps number and label; comment and origin stay."""
    attributes = {
        semconv.GEN_AI_EVALUATION_NAME: "solved",
        semconv.GEN_AI_EVALUATION_SCORE_VALUE: 1.0,
        semconv.GEN_AI_EVALUATION_SCORE_LABEL: "True",
        semconv.GEN_AI_EVALUATION_EXPLANATION: "equal",
        semconv.SCORE_ORIGIN: semconv.ORIGIN_OUTSIDE,
    }
    parent = SpanContext(5, 9, is_remote=False)
    assert dict(restored(span(attributes, parent)).attributes or {}) == attributes
