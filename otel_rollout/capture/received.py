"""Calls from other processes: a task that outlives one keeps its context, and is no part of it any more."""

from __future__ import annotations

from typing import Final

from opentelemetry import context as otel_context
from opentelemetry.context import Context

_KEY: Final = otel_context.create_key("otel-rollout-received-call")


class _Call:
    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


def begin(context: Context) -> Context:
    """The context of a call that is about to run in ``context``."""
    return otel_context.set_value(_KEY, _Call(), context)


def end(context: Context) -> None:
    """Note that the call is over whose context this is."""
    call = context.get(_KEY)
    if type(call) is _Call:
        call.is_over = True


def is_over(context: Context) -> bool:
    """Whether ``context`` is that of a call from another process which is over."""
    call = context.get(_KEY)
    return type(call) is _Call and call.is_over
