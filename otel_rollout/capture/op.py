"""``rollout_trace_op``: an operation of a trajectory — a model call, a tool, a reward — as a span."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span

from otel_rollout import runtime, semconv
from otel_rollout.capture import spans, values
from otel_rollout.capture.binding import Binder, make_binder
from otel_rollout.capture.guard import fault
from otel_rollout.capture.trajectory import Trajectory, restore, trajectory_in
from otel_rollout.record.span import RecordingSpan

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def rollout_trace_op(function: Function, /) -> Function: ...
@overload
def rollout_trace_op(
    *, name: str | None = None, kind: str = semconv.KIND_CHAIN
) -> Callable[[Function], Function]: ...


def rollout_trace_op(
    function: Function | None = None, /, *, name: str | None = None, kind: str = semconv.KIND_CHAIN
) -> Function | Callable[[Function], Function]:
    """Record each call of a function, method or coroutine function as a span.

    The span holds the arguments by name (without ``self`` and ``cls``), the result, and the exception that
    leaves the call, if one does; what the caller gets is what the plain function gives. Use it bare or
    with options. Attributes can be added inside through OpenTelemetry::

        trace.get_current_span().set_attribute("gen_ai.usage.output_tokens", n)

    Called outside any trajectory, the call is recorded as a trace of its own.

    Args:
        function: what to record.
        name: name of the span; by default the function's qualified name.
        kind: what the operation is, in OpenInference's words: ``LLM``, ``TOOL``, ``AGENT``, ``CHAIN``,
            ``RETRIEVER``, ``EVALUATOR`` …

    Raises:
        ValueError: at decoration, for a kind that does not exist.
        TypeError: at decoration, for something that cannot be called.
    """
    if kind not in semconv.SPAN_KINDS:
        raise ValueError(
            f"rollout_trace_op: kind={kind!r} is none of {', '.join(sorted(semconv.SPAN_KINDS))}"
        )
    if function is None:
        return lambda decorated: _traced(decorated, name, kind)
    return _traced(function, name, kind)


def _traced(function: Function, name: str | None, kind: str) -> Function:
    if isinstance(function, (staticmethod, classmethod)):
        return cast("Function", type(function)(_traced(function.__func__, name, kind)))
    if not callable(function) or inspect.isclass(function):
        raise TypeError(f"rollout_trace_op: {function!r} is not a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"rollout_trace_op: {function.__qualname__} is a generator, which cannot be recorded yet; "
            "decorate what it calls"
        )
    operation = Operation(function, name, kind)
    wrapper = _traced_coroutine if inspect.iscoroutinefunction(function) else _traced_function
    return cast("Function", wrapper(operation, function))


class Operation:
    """What is known of an operation before it is called. Pickles as its function and options."""

    def __init__(self, function: Callable[..., Any], name: str | None, kind: str) -> None:
        self.function = function
        self.given_name = name
        self.name = name or str(getattr(function, "__qualname__", type(function).__name__))
        self.kind = kind
        self.bind: Binder = make_binder(function)

    def __reduce__(self) -> tuple[Any, ...]:
        return Operation, (self.function, self.given_name, self.kind)


# The wrappers are pickled by value when the function they wrap is (anything in __main__): they name only
# functions and classes of ours, which pickle by reference.


def _traced_function(operation: Operation, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorded = begin(operation, args, kwargs)
        if recorded is None:
            return function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            recorded.raised(error)
            raise
        recorded.returned(result)
        return result

    return call


def _traced_coroutine(operation: Operation, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        recorded = begin(operation, args, kwargs)
        if recorded is None:
            return await function(*args, **kwargs)
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            recorded.raised(error)
            raise
        recorded.returned(result)
        return result

    return call


class _Call:
    """One call being recorded."""

    __slots__ = ("attached", "limit", "previous", "span", "trajectory")

    def __init__(
        self,
        span: Span,
        previous: otel_context.Context,
        attached: otel_context.Context,
        trajectory: Trajectory | None,
        limit: int,
    ) -> None:
        self.span = span
        self.previous = previous
        self.attached = attached
        self.trajectory = trajectory
        self.limit = limit

    def returned(self, result: Any) -> None:
        """The call gave ``result``."""
        try:
            restore(self.attached, self.previous)
            try:
                encoded = values.to_json(result, self.limit)
                spans.put_json(self.span, semconv.OUTPUT_VALUE, encoded)
                if self.trajectory is not None:
                    self.trajectory.offer_output(encoded)
            finally:
                self.span.end()
        except Exception as error:  # noqa: BLE001
            fault("recording the result of an operation", error)

    def raised(self, error: BaseException) -> None:
        """The call raised ``error``."""
        try:
            restore(self.attached, self.previous)
            try:
                spans.fail(self.span, error)
            finally:
                self.span.end()
        except Exception as internal:  # noqa: BLE001
            fault("recording the exception of an operation", internal)


def begin(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
    """Start recording a call; None when it is not recorded. Never raises."""
    if runtime.off:
        return None
    try:
        active = runtime.current()
        return None if active is None else _begin(active, operation, args, kwargs)
    except Exception as error:  # noqa: BLE001
        fault("beginning an operation", error)
        return None


def _begin(
    active: runtime.Runtime, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Call | None:
    context = otel_context.get_current()
    parent = trace.get_current_span(context)
    span = spans.start(active, operation.name, operation.kind, parent, context)
    if span is None:
        return None
    limit = active.settings.value_limit
    try:
        bound = operation.bind(*args, **kwargs)
    except TypeError:  # not callable like this: the function is about to say so itself
        bound = {"args": list(args), "kwargs": kwargs}
    encoded = values.to_json(bound, limit)
    spans.put_json(span, semconv.INPUT_VALUE, encoded)
    trajectory = _trajectory_directly_above(parent, context)
    if trajectory is not None:
        trajectory.offer_input(encoded)
    attached = trace.set_span_in_context(span, context)
    otel_context.attach(attached)
    return _Call(span, context, attached, trajectory, limit)


def _trajectory_directly_above(parent: Span, context: otel_context.Context) -> Trajectory | None:
    if type(parent) is RecordingSpan:
        return cast("Trajectory | None", parent.trajectory)
    trajectory = trajectory_in(context)
    return trajectory if trajectory is not None and trajectory.is_rooted_at(parent) else None
