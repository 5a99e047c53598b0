"""Make spans by OpenTelemetry's API under ddtrace's OpenTelemetry mode, inside and outside a trajectory."""

from __future__ import annotations

import os
from contextlib import suppress

from tests.foreign.libraries import datadog

datadog()  # before OpenTelemetry is imported, so that ddtrace's runtime context is used

from opentelemetry import trace  # noqa: E402
from opentelemetry.trace import Link, SpanKind, Status, StatusCode  # noqa: E402

import otel_rollout  # noqa: E402

otel_rollout.configure({"spool": {}}, project_name="beside")
tracer = trace.get_tracer("app")
with otel_rollout.rollout_trace_attr(step=1, sample_index=2):
    root = trace.get_current_span().get_span_context()
    with tracer.start_as_current_span(
        "whole", kind=SpanKind.CLIENT, attributes={"numbers": [1, 2], "flag": True}, links=[Link(root)]
    ) as span:
        span.set_attributes({"count": 3, "share": 0.5})
        trace.get_current_span().set_attribute("late", "yes")
        span.add_event("seen", {"what": "it"})
        span.update_name("renamed")
        span.set_status(Status(StatusCode.OK))
    with suppress(ValueError), tracer.start_as_current_span("failed"):
        raise ValueError("no")
    for _ in range(1000):
        span.set_attribute("after the end", 1)
with tracer.start_as_current_span("outside"):
    pass
otel_rollout.shutdown()
os._exit(0)  # the backend's threads serve for ever
