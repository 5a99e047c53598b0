"""Record calls of generator functions: a span from the first step to the end."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from otel_rollout.base import semconv
from otel_rollout.base.errors import fault
from otel_rollout.record.capture import encoding, usage
from otel_rollout.record.capture.generator_driver import AsyncSteps, Steps
from otel_rollout.record.capture.operation import Operation, RecordedCall, start_call
from otel_rollout.record.capture.signature import Parameters
from otel_rollout.record.recording.runtime_context import SPAN
from otel_rollout.record.recording.state import state

MAX_ITEMS: Final = 4096
"""Maximum number of items recorded of a generator; further items are only counted. The setting
``value_limit`` bounds the total size of the recorded items."""


Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])


def fitting(function: Any, wrappers: Sequence[Wrapper]) -> Wrapper:
    """Return the wrapper for a function's type: plain, coroutine, generator or asynchronous generator."""
    plain, coroutine, generator, async_generator = wrappers
    function = _plain(function)
    if not isinstance(function, (types.FunctionType, types.MethodType)):  # an object with a __call__
        function = type(function).__call__
    if inspect.iscoroutinefunction(function):
        return coroutine
    if inspect.isgeneratorfunction(function):
        return generator
    return async_generator if inspect.isasyncgenfunction(function) else plain


def traced_generator(operation: Operation, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a generator function so that each call is recorded."""
    call = generate_wrapper(function, "def", functools.partial(start_steps, Steps, operation, function))
    code = getattr(_plain(function), "__code__", None)
    if code is not None and code.co_flags & inspect.CO_ITERABLE_COROUTINE:
        return types.coroutine(call)
    return call


def traced_async_generator(operation: Operation, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an asynchronous generator function so that each call is recorded."""
    return generate_wrapper(
        function, "async def", functools.partial(start_steps, AsyncSteps, operation, function)
    )


def _plain(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def start_steps(
    steps: type[Steps | AsyncSteps],
    operation: Operation,
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Steps | AsyncSteps:
    """Start the recording and the steps of a generator, at its first step."""
    call = recording = None
    try:
        call = None if state.off else start_call(operation, args, kwargs)
        recording = _Recording(call) if type(call) is RecordedCall else None
    except Exception as error:  # noqa: BLE001
        fault("starting a generator", error)
    return steps(function(*args, **kwargs), None if call is None else call.inside, recording)


class _Recording:
    """A call of a generator function that is being recorded."""

    def __init__(self, call: RecordedCall) -> None:
        self._call = call
        self._encode = call.encode
        self._bytes_left = call.limit
        self._items: list[bytes] = []
        self._count = 0
        self._usage: dict[str, usage.Attribute] = {}

    def yielded(self, item: Any) -> None:
        """Encode an item at once: it may change later."""
        self._count += 1
        if type(item) not in usage.PLAIN:
            self._usage |= usage.read(item)
        if self._encode is not None and self._bytes_left > 0 and len(self._items) < MAX_ITEMS:
            encoded = self._encode(item, self._bytes_left)
            self._items.append(encoded)
            self._bytes_left -= len(encoded)

    def ended(self, value: Any, closed: bool) -> None:
        """Record the returned value, or that the generator was closed before its end."""
        try:
            self._describe(exhausted=not closed)
            if value is not None and self._encode is not None:
                returned = self._encode(value, self._call.limit).decode()
                self._call.span.set_attribute(semconv.GENERATOR_RETURNED, returned)
        finally:
            self._call.end()

    def failed(self, error: BaseException) -> None:
        """Record an exception that left the generator."""
        try:
            self._describe(exhausted=False)
        finally:
            self._call.raised(error)

    def _describe(self, exhausted: bool) -> None:
        span = self._call.span
        if self._usage:
            usage.record_once(span, self._call.outside.get(SPAN), self._usage)
        span.set_attribute(semconv.GENERATOR_ITEMS, self._count)
        span.set_attribute(semconv.GENERATOR_EXHAUSTED, exhausted)
        if self._encode is not None:
            more = self._count - len(self._items)
            items = [*self._items, *([encoding.to_json(f"… ({more} more items)", 64)] if more else [])]
            self._call.output(b"[%b]" % b",".join(items))


# --- wrappers ----------------------------------------------------------------------------------------------


_SOURCE: Final = """\
{define} call({declared}):
    rollout_steps_ = rollout_start_steps_({forwarded})
    {forget}
    while {advance}:
        try:
            rollout_steps_.send((yield rollout_steps_.take()))
        except BaseException as rollout_error_:
            rollout_steps_.throw(rollout_error_)
{end}
"""


def generate_wrapper(
    function: Callable[..., Any], define: str, start_steps: Callable[..., Steps | AsyncSteps]
) -> Callable[..., Any]:
    """Generate a generator function with the parameters of another one.

    Args:
        function: the function with the parameters.
        define: ``def`` or ``async def``.
        start_steps: makes the steps of a call from its arguments.
    """
    parameters = Parameters(function, follow_wrapped=False)
    source = _SOURCE.format(
        define=define,
        declared=parameters.declared(),
        forwarded=parameters.forwarded(),
        # The wrapper must not keep arguments alive for longer than the function does.
        forget=f"del {', '.join(parameters.names)}" if parameters.names else "",
        advance=("" if define == "def" else "await ") + "rollout_steps_.advance()",
        end="    return rollout_steps_.value" if define == "def" else "",
    )
    namespace: dict[str, Any] = {**parameters.defaults, "rollout_start_steps_": start_steps}
    exec(source, namespace)  # noqa: S102 - names and defaults come from the function's own signature
    call: Callable[..., Any] = functools.wraps(function)(namespace["call"])
    return call
