"""Log events with a model call's messages become events of the call's span."""

from __future__ import annotations

import json

import pytest
from opentelemetry import trace
from opentelemetry._logs import LogRecord, get_logger
from opentelemetry._logs import _internal as logs_api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

import otel_rollout
from otel_rollout import rollout_trace_attr
from otel_rollout.record.recording.state import state
from tests.spool_reader import plain_attributes, read_directory

TRACER = trace.get_tracer("opentelemetry.instrumentation.openai_v2")
LOGGER = get_logger("opentelemetry.instrumentation.openai_v2")


def record(name: str, body: object = None, **attributes: str) -> LogRecord:
    """Return a record as instrumentors of this version of the API make it."""
    try:
        return LogRecord(event_name=name, body=body, attributes=attributes)  # type: ignore[arg-type]
    except TypeError:  # before opentelemetry-api 1.35
        return LogRecord(body=body, attributes={"event.name": name, **attributes})  # type: ignore[arg-type]


def test_messages_in_log_events_become_events_of_the_span(recorded):
    """Each has the record's name and attributes, and its body as JSON."""
    with rollout_trace_attr(step=1), TRACER.start_as_current_span("chat"):
        LOGGER.emit(record("gen_ai.user.message", {"content": "3+4?"}, **{"gen_ai.system": "openai"}))
        LOGGER.emit(record("gen_ai.choice", {"index": 0, "message": {"content": "7"}}))
        LOGGER.emit(record("of.another.kind", "text"))
    span = next(each.span for each in recorded() if each.name == "chat")
    events = [(event.name, plain_attributes(event.attributes)) for event in span.events]
    assert [name for name, _ in events] == ["gen_ai.user.message", "gen_ai.choice"]
    assert events[0][1] == {"gen_ai.system": "openai", "gen_ai.event.content": '{"content":"3+4?"}'}
    assert json.loads(events[1][1]["gen_ai.event.content"])["message"] == {"content": "7"}


def test_record_names_its_span_by_its_context(recorded):
    """The last event of a streamed reply comes when another span is current, or none."""
    with rollout_trace_attr(step=1):
        span = TRACER.start_span("streamed")
        late = record("gen_ai.choice", {"index": 0})
        late.context = trace.set_span_in_context(span)
        LOGGER.emit(late)
        span.end()
    assert [event.name for each in recorded() for event in each.span.events] == ["gen_ai.choice"]


def test_events_outside_trajectories_and_odd_bodies_do_no_harm(recorded):
    """Nothing raises: no span, no name, a body that is not JSON."""
    LOGGER.emit(record("gen_ai.user.message", {"content": "nobody's"}))
    with rollout_trace_attr(step=1), TRACER.start_as_current_span("chat"):
        LOGGER.emit(record("gen_ai.user.message", {"content": object(), 3: {1}}))
        LOGGER.emit(LogRecord(body="a log line"))
    (event,) = [event for each in recorded() for event in each.span.events]
    assert "object object" in plain_attributes(event.attributes)["gen_ai.event.content"]


@pytest.mark.parametrize("is_set", [True, False])
def test_logger_provider_of_the_application_gets_its_records(recorded, monkeypatch, is_set):
    """Records are the application's as soon as it has set a logger provider."""
    monkeypatch.setattr(logs_api, "_LOGGER_PROVIDER", None)
    monkeypatch.setattr(logs_api, "_LOGGER_PROVIDER_SET_ONCE", Once())
    logger, got = get_logger("another"), []

    class Logger(logs_api.NoOpLogger):
        def emit(self, *records: object, **_: object) -> None:
            got.extend(records)

    class Provider(logs_api.NoOpLoggerProvider):
        def get_logger(self, name: str, *_: object, **__: object) -> Logger:
            return Logger(name)

    with rollout_trace_attr(step=1), TRACER.start_as_current_span("chat"):
        if is_set:
            logs_api.set_logger_provider(Provider())
        logger.emit(record("gen_ai.choice"))
    assert len(got) == is_set
    assert sum(len(each.span.events) for each in recorded()) == (not is_set)


@pytest.mark.parametrize("mode", ["full", "none"])
def test_log_events_are_recorded_with_spans_of_the_applications_provider(
    fresh_process, test_exporters, tmp_path, monkeypatch, mode
):
    """The spool has them with the span; the application's backend gets the span as it was."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    otel_rollout.configure({"test-file": {"path": str(tmp_path / "delivered")}}, capture_content=mode)
    with rollout_trace_attr(step=1), provider.get_tracer("openai_v2").start_as_current_span("chat"):
        LOGGER.emit(record("gen_ai.user.message", {"content": "3+4?"}))
    assert state.runtime.writer.flush(10)
    (span,) = [each.span for each in read_directory(tmp_path / "spool") if each.name == "chat"]
    (event,) = span.events
    attributes = plain_attributes(event.attributes)
    assert attributes.get("gen_ai.event.content") == ('{"content":"3+4?"}' if mode == "full" else None)
    assert [each.events for each in exporter.get_finished_spans() if each.name == "chat"] == [()]
