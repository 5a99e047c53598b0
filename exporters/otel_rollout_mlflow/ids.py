"""Return ids of MLflow's traces, and recognize root spans."""

from __future__ import annotations

from typing import Final

from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.exporting.projects import context_of

PREFIX: Final = "tr-"
"""Prefix of MLflow's trace ids, before OpenTelemetry's trace id in hex."""
PLACEHOLDER_PARENT: Final = (1 << 64) - 1
"""Span id that no span has: the parent of spans that stand for running roots."""


def trace_id_of(span: ReadableSpan) -> str:
    """Return MLflow's id of a span's trace; MLflow derives it from the trace id."""
    return f"{PREFIX}{context_of(span).trace_id:032x}"


def is_root(span: ReadableSpan) -> bool:
    """Whether MLflow takes the trace's tags, previews and state from the span."""
    return span.parent is None
