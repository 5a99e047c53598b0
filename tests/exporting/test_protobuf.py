"""Requests of spans in protobuf, compared with those of OpenTelemetry's own encoder."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from otel_rollout.exporting.encodable import encodable
from otel_rollout.exporting.protobuf import request_of
from tests.fuzz.spans import spans

CONTEXT = SpanContext(1, 2, True, TraceFlags(1), TraceState([("vendor", "a"), ("other", "b")]))


def span(**fields: Any) -> ReadableSpan:
    """Return a span without an instrumentation scope."""
    return ReadableSpan("op", CONTEXT, **{"parent": CONTEXT, "start_time": 1, "end_time": 2, **fields})


@given(spans)
def test_request_of_any_spans_is_that_of_opentelemetrys_encoder(given_spans: list[ReadableSpan]) -> None:
    """Every field has the same value, after characters that UTF-8 cannot hold are replaced."""
    expected = encode_spans([encodable(span) for span in given_spans])
    assert request_of(given_spans).SerializeToString() == expected.SerializeToString()


def test_spans_of_equal_resources_and_scopes_are_together() -> None:
    """Equal resources and scopes are in a request once, though they are different objects."""
    made = [
        span(resource=Resource({"a": a}, "schema"), instrumentation_scope=scope)
        for a in (1, 2, 1)
        for scope in (None, InstrumentationScope("s", "1", "of scope", {"k": 1}), InstrumentationScope("s"))
    ]
    request = request_of(made)
    assert [len(of.scope_spans) for of in request.resource_spans] == [3, 3]
    assert [len(scope.spans) for scope in request.resource_spans[0].scope_spans] == [2, 2, 2]
    assert request == encode_spans(made)


@pytest.mark.parametrize("value", [2**63, object(), {"deep": [object()]}, "half \ud800"])
def test_attribute_that_otlp_cannot_hold_costs_no_other(value: object) -> None:
    """The other attributes and spans of the request arrive."""
    [first, second] = (
        request_of([span(attributes={"odd": value, "good": 1}), span()])
        .resource_spans[0]
        .scope_spans[0]
        .spans
    )
    assert {entry.key for entry in first.attributes} - {"odd"} == {"good"}
    assert second.trace_state == "vendor=a,other=b"
