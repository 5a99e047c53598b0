"""Mark the context of a call from another process, to know when the call ended.

A task may outlive the call that started it. The task keeps the context, but no longer belongs to the call.
"""

from __future__ import annotations

from typing import Final

from opentelemetry import context as otel_context
from opentelemetry.context import Context

_KEY: Final = otel_context.create_key("otel-rollout-remote-call")


class _RemoteCall:
    __slots__ = ("has_ended",)

    def __init__(self) -> None:
        self.has_ended = False


def start(context: Context) -> Context:
    """Return ``context`` with a mark for a call that is about to start."""
    return otel_context.set_value(_KEY, _RemoteCall(), context)


def end(context: Context) -> None:
    """Mark the call in a context as ended."""
    call = context.get(_KEY)
    if type(call) is _RemoteCall:
        call.has_ended = True


def has_ended(context: Context) -> bool:
    """Return whether a context belongs to a call from another process that has ended."""
    call = context.get(_KEY)
    return type(call) is _RemoteCall and call.has_ended


def is_in(context: Context) -> bool:
    """Return whether a context belongs to a call from another process."""
    return _KEY in context
