"""Change one span of ddtrace's OpenTelemetry mode from two threads at once."""

from __future__ import annotations

import os
import threading

from tests.foreign.libraries import datadog

datadog()  # before OpenTelemetry is imported, so that ddtrace's runtime context is used

from opentelemetry import trace  # noqa: E402

import otel_rollout  # noqa: E402

is_inside, is_changed = threading.Event(), threading.Event()


class SlowError(Exception):
    """An error whose text takes as long as the other thread's change."""

    def __str__(self) -> str:
        is_inside.set()
        is_changed.wait(30)
        return "slow"


def change() -> None:
    """Add an event while the main thread is inside a method of the span."""
    is_inside.wait(30)
    span.add_event("other")
    is_changed.set()


otel_rollout.configure({"spool": {}}, project_name="beside")
thread = threading.Thread(target=change)
with otel_rollout.rollout_trace_attr(step=1):
    span = trace.get_tracer("app").start_span("shared")
    thread.start()
    span.record_exception(SlowError())  # ddtrace's method adds an event after it has read the text
    thread.join()
    span.end()
otel_rollout.shutdown()
os._exit(0)  # the backend's threads serve for ever
