"""Record operations of a trajectory as spans: model calls, tools, rewards."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from itertools import islice
from typing import Any, TypeVar, cast, get_args, overload

from opentelemetry.context import get_current

from otel_rollout.base import semconv
from otel_rollout.base.errors import fault
from otel_rollout.base.finalizers import attach
from otel_rollout.base.given import MAX_NAMES
from otel_rollout.record.capture.generators import fitting, traced_async_generator, traced_generator
from otel_rollout.record.capture.operation import Capture, Operation, Options, start_call
from otel_rollout.record.recording.state import state

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def rollout_trace_op(function: Function, /) -> Function: ...
@overload
def rollout_trace_op(
    *,
    name: str | None = None,
    kind: str = semconv.KIND_CHAIN,
    capture: str = "all",
    exclude: Collection[str] = (),
    record_super: bool = False,
    token2text: bool | None = None,
) -> Callable[[Function], Function]: ...


def rollout_trace_op(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    kind: str = semconv.KIND_CHAIN,
    capture: str = "all",
    exclude: Collection[str] = (),
    record_super: bool = False,
    token2text: bool | None = None,
) -> Function | Callable[[Function], Function]:
    """Record each call of a function, coroutine or generator function as a span.

    Use the decorator bare or with options. The span holds the call's arguments by name (without ``self`` and
    ``cls``), its result or the items of a generator, and an exception that leaves the call. For the caller
    nothing changes. The function can add attributes through OpenTelemetry::

        trace.get_current_span().set_attribute("gen_ai.usage.output_tokens", n)

    A call outside any trajectory is recorded as a trace of its own.

    Args:
        function: the function to record.
        name: name of the span; by default the function's qualified name.
        kind: the operation's kind in OpenInference: ``LLM``, ``TOOL``, ``AGENT``, ``CHAIN``, ``RETRIEVER``,
            ``EVALUATOR`` …
        capture: which content of a call is recorded: ``"all"``, ``"inputs"``, ``"outputs"`` or ``"none"``.
        exclude: names of arguments that are not recorded.
        record_super: whether a decorated method that this one overrides, and calls through ``super()``, gets
            a span of its own. By default both calls share one span.
        token2text: whether ``prompt_text`` and ``response_text`` are shown beside the token ids of an output
            (``prompt_ids``, ``response_ids``, ``token_ids``). They are detokenized outside this process, by
            ``self.tokenizer`` or by the setting ``tokenizer``. None: the current trajectory decides, or else
            the setting ``token2text``.

    Raises:
        ValueError: at decoration, for a kind or capture that does not exist, and for a name in ``exclude``
            that the function does not take.
        TypeError: at decoration, for an object that cannot be called, or an ``exclude`` without names.
    """
    _check_options(function, kind, capture)
    shows_text = None if token2text is None else bool(token2text)
    options = Options(name, kind, cast("Capture", capture), _names(exclude), record_super, shows_text)
    return functools.partial(_traced, options=options) if function is None else _traced(function, options)


def _check_options(function: object, kind: str, capture: str) -> None:
    """Check arguments of :func:`rollout_trace_op`.

    Raises:
        ValueError: for a kind or capture that does not exist.
        TypeError: for a name in the function's place.
    """
    if isinstance(function, str):
        is_kind = function.upper() in semconv.SPAN_KINDS
        right = f"kind={function.upper()!r}" if is_kind else f"name={function!r}"
        raise TypeError(
            f"rollout_trace_op: options are keyword arguments: @rollout_trace_op({right}), "
            f"not @rollout_trace_op({function!r})"
        )
    if kind not in semconv.SPAN_KINDS:
        raise ValueError(
            f"rollout_trace_op: kind={kind!r} is none of {', '.join(sorted(semconv.SPAN_KINDS))}"
        )
    if not isinstance(capture, str) or capture not in get_args(Capture):
        raise ValueError(f"rollout_trace_op: capture={capture!r} is none of {', '.join(get_args(Capture))}")


def _names(exclude: Collection[str]) -> frozenset[str]:
    """Return the names in ``exclude``, which may be no collection, or an endless one.

    Raises:
        TypeError: ``exclude`` is no collection of names.
    """
    names = list(islice(exclude, MAX_NAMES + 1))
    if isinstance(exclude, str) or len(names) > MAX_NAMES or not all(isinstance(name, str) for name in names):
        raise TypeError(f"rollout_trace_op: exclude={exclude!r} is no collection of argument names")
    return frozenset(names)


def _traced(function: Function, options: Options) -> Function:
    if isinstance(function, (staticmethod, classmethod)):
        return cast("Function", type(function)(_traced(function.__func__, options)))
    if not callable(function) or inspect.isclass(function):
        raise TypeError(f"rollout_trace_op: {function!r} is not a function. Decorate a function or a method")
    try:
        operation = Operation(function, options)
    except ValueError as error:
        raise ValueError(f"rollout_trace_op: {error}") from None
    wrappers = (_traced_function, _traced_coroutine, traced_generator, traced_async_generator)
    return cast("Function", fitting(function, wrappers)(operation, function))


# The wrappers are on the hot path, so they share no code. A wrapper of a function in __main__ is pickled by
# value. So the wrappers refer only to functions, classes and modules, which are pickled by reference. Each
# wrapper calls our functions inside a `try`: even the call itself raises when the stack is full.


def _traced_function(operation: Operation, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if state.off:
            return function(*args, **kwargs)
        try:
            recorded = start_call(operation, args, kwargs)
        except Exception as error:  # noqa: BLE001
            recorded = None
            fault("starting an operation", error)
        if recorded is None:
            return function(*args, **kwargs)
        try:
            attach(recorded.inside)
            result = function(*args, **kwargs)
        except BaseException as error:
            current = get_current()
            if current is recorded.inside or current.get(recorded.key) is recorded.span:
                attach(recorded.outside)
            try:
                recorded.raised(error)
            except Exception as internal:  # noqa: BLE001
                fault("recording the exception of an operation", internal)
            raise
        current = get_current()
        if current is recorded.inside or current.get(recorded.key) is recorded.span:
            attach(recorded.outside)
        try:
            recorded.returned(result)
        except Exception as error:  # noqa: BLE001
            fault("recording the result of an operation", error)
        return result

    return call


def _traced_coroutine(operation: Operation, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        if state.off:
            return await function(*args, **kwargs)
        try:
            recorded = start_call(operation, args, kwargs)
        except Exception as error:  # noqa: BLE001
            recorded = None
            fault("starting an operation", error)
        if recorded is None:
            return await function(*args, **kwargs)
        try:
            attach(recorded.inside)
            result = await function(*args, **kwargs)
        except BaseException as error:
            # The context may differ from the start: the garbage collector may close a coroutine.
            current = get_current()
            if current is recorded.inside or current.get(recorded.key) is recorded.span:
                attach(recorded.outside)
            try:
                recorded.raised(error)
            except Exception as internal:  # noqa: BLE001
                fault("recording the exception of an operation", internal)
            raise
        current = get_current()
        if current is recorded.inside or current.get(recorded.key) is recorded.span:
            attach(recorded.outside)
        try:
            recorded.returned(result)
        except Exception as error:  # noqa: BLE001
            fault("recording the result of an operation", error)
        return result

    return call
