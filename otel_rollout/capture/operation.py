"""What is known of an operation before it is called, and the record of one of its calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import get_current
from opentelemetry.trace import Span

from otel_rollout import runtime
from otel_rollout.base import semconv
from otel_rollout.capture import span_io, token_text, usage
from otel_rollout.capture.encoding import ENCODERS, Encoder
from otel_rollout.capture.signature import Binder, Parameters, make_binder
from otel_rollout.capture.trajectory import RUNNING, SPAN, Trajectory, trajectory_in
from otel_rollout.otlp.writer import json_string
from otel_rollout.recording.identity import identity_in
from otel_rollout.recording.provider import UnrecordedSpan
from otel_rollout.recording.span import Encoded, RecordingSpan

CAPTURES: Final = ("all", "inputs", "outputs", "none")


class Operation:
    """What is known of an operation before it is called. Pickles as its function and options.

    Raises:
        ValueError: for a name in ``exclude`` that the function does not take.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str | None,
        kind: str,
        capture: str,
        exclude: Collection[str],
        record_super: bool,
        token2text: bool | None,
    ) -> None:
        self._options = (function, name, kind, capture, exclude, record_super, token2text)
        self.function = function
        self.name = name or name_of(function)
        self.kind = kind
        self.encoded_kind = span_io.KINDS[kind]
        self.encoded_name = json_string(self.name)
        self.takes_input = capture in ("all", "inputs")
        self.takes_output = capture in ("all", "outputs")
        self.exclude = frozenset(exclude)
        self.record_super = record_super
        self.token2text = token2text
        self.bind: Binder = make_binder(function, exclude)
        self.method = _method_name(function)

    def __reduce__(self) -> tuple[Any, ...]:
        return Operation, self._options

    def misfit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What to show of arguments that the function does not take like this."""
        if self.exclude:  # which of them is to be left out is not known
            return {"args": f"<{len(args)} arguments>", "kwargs": sorted(kwargs)}
        return {"args": list(args), "kwargs": kwargs}


def name_of(function: Callable[..., Any]) -> str:
    """What a callable is called: a function's qualified name, an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__name__))


def _method_name(function: Callable[..., Any]) -> str | None:
    try:
        has_receiver = Parameters(function).has_receiver
    except (TypeError, ValueError):
        return None
    return getattr(function, "__name__", None) if has_receiver else None


class _Running:
    """Whose call of which operation a context is inside of; lets go of whose when the call has ended."""

    __slots__ = ("operation", "receiver")

    def __init__(self, operation: Operation, receiver: Any) -> None:
        self.operation = operation
        self.receiver = receiver


class Call:
    """One call being recorded: in it ``inside`` is the current context, before and after it ``outside``."""

    __slots__ = ("_running", "_shows_text", "_trajectory", "encode", "inside", "limit", "outside", "span")
    key: Final = SPAN
    """Where a context has its current span: of this process; wrappers may have been pickled in another."""

    def __init__(
        self,
        span: Span,
        outside: otel_context.Context,
        running: _Running | None,
        trajectory: Trajectory | None,
        encode: Encoder | None,
        limit: int,
        shows_text: bool,
    ) -> None:
        self.span = span
        self.encode = encode
        self.limit = limit
        self.outside = outside
        self.inside = otel_context.Context({**outside, SPAN: span, RUNNING: running})
        self._running = running
        self._trajectory = trajectory
        self._shows_text = shows_text

    def returned(self, result: Any) -> None:
        """The call gave ``result``."""
        try:
            encode = self.encode
            if encode is not None:
                self.output(encode(result, self.limit))
            if "usage" in result if type(result) is dict else type(result) not in usage.PLAIN:
                usage.record(self.span, self.outside.get(SPAN), result)
        finally:
            self.end()

    def raised(self, error: BaseException) -> None:
        """The call raised ``error``."""
        try:
            span_io.fail(self.span, error)
        finally:
            self.end()

    def output(self, encoded: bytes) -> None:
        """What came of the call, as JSON."""
        span_io.put_json(self.span, semconv.OUTPUT_VALUE, encoded)
        if self._trajectory is not None:
            self._trajectory.offer_output(encoded, token_text.id_of(self.span) if self._shows_text else None)

    def end(self) -> None:
        """The call is over."""
        if self._running is not None:
            self._running.receiver = None
        self.span.end()


class Unrecorded(Call):
    """A call that a sampler has left out, as those below it are to know."""

    __slots__ = ()

    def __init__(self, span: Span, outside: otel_context.Context) -> None:
        self.span = span
        self.outside = outside
        self.inside = otel_context.Context({**outside, SPAN: span})

    def returned(self, result: Any) -> None:
        """Nothing is recorded."""

    def raised(self, error: BaseException) -> None:
        """Nothing is recorded."""


def begin(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """Start recording a call; None when it is not recorded. The caller makes ``inside`` current."""
    active = runtime.current()
    if active is None:
        return None
    outside = get_current()
    above = outside.get(SPAN)
    if type(above) is UnrecordedSpan:
        return None
    receiver = running = None
    if operation.method is not None and args:
        receiver = args[0]
        if _is_call_of_super(outside.get(RUNNING), operation, receiver):
            return None
        running = _Running(operation, receiver)
    if type(above) is RecordingSpan:
        attributes: Encoded = {semconv.SPAN_KIND: operation.encoded_kind}
        span: Span = active.tracer.start_below(above, operation.encoded_name, attributes)
        trajectory, identity = above.trajectory, above.identity
    else:
        parent = trace.get_current_span(outside)
        started = span_io.start(active, operation.name, operation.kind, parent, outside)
        if started is None:
            return None
        if not started.is_recording():
            return Unrecorded(started, outside)
        span, trajectory = started, _trajectory_rooted_at(parent, outside)
        identity = identity_in(outside)
    try:
        settings = active.settings
        encode, limit = ENCODERS[settings.capture_content], settings.value_limit
        if encode is not None and operation.takes_input:
            try:
                arguments = operation.bind(*args, **kwargs)
            except TypeError:  # not callable like this: the function is about to say so itself
                arguments = operation.misfit(args, kwargs)
            encoded = encode(arguments, limit)
            span_io.put_json(span, semconv.INPUT_VALUE, encoded)
            if trajectory is not None:
                trajectory.offer_input(encoded)
        if not operation.takes_output:
            encode = None
        shows_text = operation.token2text
        if shows_text is None:
            shows_text = settings.token2text if identity.token2text is None else identity.token2text
        if shows_text:
            shows_text = encode is not None and token_text.mark(active, span, receiver)
        return Call(span, outside, running, trajectory, encode, limit, shows_text)
    except BaseException:
        span.end()
        raise


def _trajectory_rooted_at(parent: Span, context: otel_context.Context) -> Trajectory | None:
    trajectory = trajectory_in(context)
    return trajectory if trajectory is not None and parent is trajectory.root else None


def _is_call_of_super(above: Any, operation: Operation, receiver: Any) -> bool:
    """Whether the call is part of the one above: of the method that one overrides, on the same object."""
    if above is None:
        return False
    overriding = above.operation
    return (
        receiver is above.receiver
        and receiver is not None
        and operation is not overriding
        and operation.method == overriding.method
        and not overriding.record_super
        and _overrides(overriding, operation, receiver)
    )


def _overrides(overriding: Operation, overridden: Operation, receiver: Any) -> bool:
    """Whether the one's function comes before the other's where the receiver's class looks methods up."""
    kind = receiver if issubclass(type(receiver), type) else type(receiver)
    found = False
    for base in kind.__mro__:
        candidate = vars(base).get(str(overridden.method))
        if not found:
            found = _stands_for(candidate, overriding.function)
        elif _stands_for(candidate, overridden.function):
            return True
    return False


def _stands_for(candidate: Any, function: Callable[..., Any]) -> bool:
    """Whether ``candidate`` is made of ``function`` by decorators that say so (``__wrapped__``)."""
    for _ in range(32):
        if candidate is function:
            return True
        candidate = getattr(candidate, "__wrapped__", None)
        if candidate is None:
            return False
    return False
