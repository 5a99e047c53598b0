"""Mark the context of a call from another process, to know when the call ended.

A task may outlive the call that started it. The task keeps the context, but no longer belongs to the call.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry.context import Context

_KEY: Final = otel_context.create_key("otel-rollout-remote-call")


def start(context: Context) -> Context:
    """Return ``context`` with a mark for a call that is about to start."""
    return otel_context.set_value(_KEY, SimpleNamespace(has_ended=False), context)


def end(context: Context) -> None:
    """Mark the call in a context as ended."""
    call: Any = context.get(_KEY)  # nobody else has the key
    if call is not None:
        call.has_ended = True


def has_ended(context: Context) -> bool:
    """Return whether a context belongs to a call from another process that has ended."""
    call: Any = context.get(_KEY)
    return call is not None and bool(call.has_ended)


def is_in(context: Context) -> bool:
    """Return whether a context belongs to a call from another process."""
    return _KEY in context
