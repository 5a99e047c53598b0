"""Mark the context of a call from another process, to know when the call ended.

A task that the call started may outlive it. The task keeps the context, but is no part of the call any more.
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
    """Return the context of a call that is about to run in ``context``."""
    return otel_context.set_value(_KEY, _RemoteCall(), context)


def end(context: Context) -> None:
    """Note that the call with this context has ended."""
    call = context.get(_KEY)
    if type(call) is _RemoteCall:
        call.has_ended = True


def has_ended(context: Context) -> bool:
    """Return whether a context is that of a call from another process that has ended."""
    call = context.get(_KEY)
    return type(call) is _RemoteCall and call.has_ended
