"""Return ids of MLflow's traces, and recognize root spans."""

from __future__ import annotations

from typing import Final

from otel_rollout.otlp.span import Span

PREFIX: Final = "tr-"
"""Prefix of MLflow's trace ids, before OpenTelemetry's trace id in hex."""
PLACEHOLDER_PARENT: Final = "f" * 16
"""Span id that no span has: the parent of spans that stand for running roots."""


def trace_id_of(span: Span) -> str:
    """Return MLflow's id of a span's trace; MLflow derives it from the trace id."""
    return f"{PREFIX}{span.trace_id}"


def is_root(span: Span) -> bool:
    """Whether MLflow takes the trace's tags, previews and state from the span."""
    return not span.parent_id
