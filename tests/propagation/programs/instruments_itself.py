"""A module of a training program that calls ``instrument()`` when it is imported, also in workers."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace

import otel_rollout

otel_rollout.instrument()


def setup() -> None:
    """Do nothing else as a job's setup hook."""


class Actor:
    """An actor whose worker imports this module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.created = seen(args, kwargs)

    def creation(self) -> Any:
        return self.created

    def method(self, *args: Any, **kwargs: Any) -> Any:
        return seen(args, kwargs)

    def uninstrument(self) -> None:
        otel_rollout.uninstrument()

    def another_method(self, *args: Any, **kwargs: Any) -> Any:
        return seen(args, kwargs)


def seen(args: Any, kwargs: Any) -> dict[str, Any]:
    context = trace.get_current_span().get_span_context()
    return {"trace": f"{context.trace_id:032x}", "args": [args, kwargs]}
