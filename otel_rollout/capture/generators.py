"""Recording generators: a call of a generator function is one span, from its first step to its end."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Final

from otel_rollout._state import process
from otel_rollout.base import semconv
from otel_rollout.base.errors import fault
from otel_rollout.capture import encoding, usage
from otel_rollout.capture.generated import generated
from otel_rollout.capture.generator_driver import AsyncSteps, Steps
from otel_rollout.capture.operation import Call, Operation, Unrecorded, begin

MAX_ITEMS: Final = 4096
"""Items of a generator that are recorded; further ones are counted. All of them together are bounded by
``value_limit`` as well."""


def traced_generator(operation: Operation, function: Callable[..., Any]) -> Callable[..., Any]:
    """A generator function that does as ``function`` does, and records it."""
    call = generated(function, "def", functools.partial(steps_of, Steps, operation, function))
    code = getattr(_plain(function), "__code__", None)
    if code is not None and code.co_flags & inspect.CO_ITERABLE_COROUTINE:
        return types.coroutine(call)
    return call


def traced_async_generator(operation: Operation, function: Callable[..., Any]) -> Callable[..., Any]:
    """An asynchronous generator function that does as ``function`` does, and records it."""
    return generated(function, "async def", functools.partial(steps_of, AsyncSteps, operation, function))


def _plain(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def steps_of(
    kind: type[Steps | AsyncSteps],
    operation: Operation,
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Steps | AsyncSteps:
    """Begin a call of a generator function; called at its first step."""
    call = recording = None
    try:
        call = None if process.off else begin(operation, args, kwargs)
        recording = None if call is None or type(call) is Unrecorded else _Recording(call)
    except Exception as error:  # noqa: BLE001
        fault("beginning a generator", error)
    return kind(function(*args, **kwargs), None if call is None else call.inside, recording)


class _Recording:
    """A call of a generator function being recorded."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._encode = call.encode
        self._left = call.limit
        self._items: list[bytes] = []
        self._count = 0
        self._usage: dict[str, usage.Attribute] = {}

    def yielded(self, item: Any) -> None:
        """The generator gave ``item``, which may be another thing later: it is encoded at once."""
        self._count += 1
        if type(item) not in usage.PLAIN:
            self._usage |= usage.read(item)
        if self._encode is not None and self._left > 0 and len(self._items) < MAX_ITEMS:
            encoded = self._encode(item, self._left)
            self._items.append(encoded)
            self._left -= len(encoded)

    def ended(self, value: Any, closed: bool) -> None:
        """The generator returned ``value``, or was ``closed`` before."""
        try:
            self._describe(exhausted=not closed)
            if value is not None and self._encode is not None:
                returned = self._encode(value, self._call.limit).decode()
                self._call.span.set_attribute(semconv.GENERATOR_RETURNED, returned)
        finally:
            self._call.end()

    def failed(self, error: BaseException) -> None:
        """``error`` left the generator."""
        try:
            self._describe(exhausted=False)
        finally:
            self._call.raised(error)

    def _describe(self, exhausted: bool) -> None:
        span = self._call.span
        usage.put(span, self._usage)
        span.set_attribute(semconv.GENERATOR_ITEMS, self._count)
        span.set_attribute(semconv.GENERATOR_EXHAUSTED, exhausted)
        if self._encode is not None:
            more = self._count - len(self._items)
            items = [*self._items, *([encoding.to_json(f"… ({more} more items)", 64)] if more else [])]
            self._call.output(b"[%b]" % b",".join(items))
