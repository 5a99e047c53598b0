"""Record odd spans of other libraries: ``python -m tests.conformance.odd``.

Half of them are joined; the others are made by an application's own provider, which is set in between.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.trace import Link, SpanContext, Status, StatusCode

import otel_rollout
from otel_rollout import rollout_trace_attr
from tests.recording.test_odd_spans import NOW, READABLE, UNREADABLE

MANY = 1000
LIBRARY = trace.get_tracer("library", "1")
VALUES: dict[str, Any] = {**{name: value for name, (value, _) in READABLE.items()}, **UNREADABLE}
NAMES = (
    "",
    " ",
    "n" * 100_000,
    "zero\0byte",
    "lone \ud800 surrogate",
    "line\nbreak",
    "界 🎲",
    "../../etc",
    "<b>",
)
MESSAGE = {"role": "user", "parts": [{"type": "text", "content": "3+4?"}]}
CONTENTS: dict[str, dict[str, Any]] = {
    "broken messages": {"gen_ai.operation.name": "chat", "gen_ai.input.messages": "[{broken"},
    "nested messages": {"gen_ai.operation.name": "chat", "gen_ai.output.messages": "[" * 900 + "]" * 900},
    "many messages": {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps([MESSAGE] * MANY)},
    "many numbered messages": {
        "openinference.span.kind": "LLM",
        **{f"llm.input_messages.{n}.message.content": str(n) for n in range(MANY)},
    },
    "odd tokens": {"openinference.span.kind": "LLM", "llm.token_count.prompt": "many", "llm.model_name": 7},
    "odd kind": {"openinference.span.kind": "ODD", "input.value": "{", "input.mime_type": "application/json"},
    "long session": {"session.id": "s" * 10_000, "user.id": "u" * 10_000},
    "odd keys": {"": 1, " ": 2, "k" * 70_000: 3, "dotted..key.": 4, "a\0b": 5, "mlflow.spanInputs": "x"},
}  # fmt: skip


def record_all(way: str) -> None:
    """Record each odd span in a trajectory of its own."""
    for number, (name, value) in enumerate(VALUES.items()):
        with (
            trajectory(way, number),
            LIBRARY.start_as_current_span(name, attributes={"kept": 1}) as span,
            suppress(Exception),  # of the SDK, for a value that refers to itself
        ):
            span.set_attribute("odd", value)
            span.add_event("event", {"before": 1, "odd": value})
            span.add_link(SpanContext(1, 2, False), {"odd": value})
    for number, name in enumerate(NAMES, MANY):
        with trajectory(way, number), LIBRARY.start_as_current_span(name, attributes={"kept": 1}) as span:
            span.add_event(name)
            span.set_status(Status(StatusCode.ERROR, name))
    for number, (name, attributes) in enumerate(CONTENTS.items(), 2 * MANY):
        with trajectory(way, number), LIBRARY.start_as_current_span(name, attributes={"kept": 1}) as span:
            span.set_attributes(attributes)
    with trajectory(way, 3 * MANY), LIBRARY.start_as_current_span("many", attributes={"kept": 1}) as span:
        for number in range(MANY):
            span.set_attribute(f"attribute {number}", "v" * 100)
            span.add_event("event", {"number": number})
        for number in range(1, MANY):
            span.add_link(SpanContext(1, number, False))
    with trajectory(way, 4 * MANY):
        LIBRARY.start_span("late", attributes={"kept": 1}, start_time=NOW).end(NOW - 1000)
        LIBRARY.start_span(
            "old", attributes={"kept": 1}, links=[Link(SpanContext(0, 0, False))], start_time=1
        ).end(2)
        LIBRARY.start_span("future", attributes={"kept": 1}, start_time=4 * NOW).end(4 * NOW + 1)


def trajectory(way: str, number: int) -> Any:
    """Return a trajectory of the way in which its spans are recorded."""
    return rollout_trace_attr(step=1, sample_index=f"{way} {number}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    record_all("joined")
    trace.set_tracer_provider(TracerProvider(span_limits=SpanLimits(max_span_attributes=4096)))
    record_all("application")
    otel_rollout.shutdown(10)
