"""Make a model call inside a model call, under ddtrace's OpenTelemetry mode."""

from __future__ import annotations

import os

from tests.foreign.libraries import datadog

datadog()  # before OpenTelemetry is imported, so that ddtrace's runtime context is used

from opentelemetry import trace  # noqa: E402

import otel_rollout  # noqa: E402

CALL = {"gen_ai.operation.name": "chat"}

otel_rollout.configure({"spool": {}}, project_name="beside")
tracer = trace.get_tracer("app")
with (
    otel_rollout.rollout_trace_attr(step=1),
    tracer.start_as_current_span("outer", attributes=CALL),
    tracer.start_as_current_span("inner", attributes=CALL),
    tracer.start_as_current_span("below"),
):
    pass
otel_rollout.shutdown()
os._exit(0)  # the backend's threads serve for ever
