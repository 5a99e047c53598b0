"""Describe an operation, and record one of its calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from opentelemetry.context import Context, get_current
from opentelemetry.trace import Span

from otel_rollout.base import semconv
from otel_rollout.otlp.writer import json_string
from otel_rollout.record import runtime
from otel_rollout.record.capture import span_io, usage
from otel_rollout.record.capture.context import OPERATION, trajectory_in
from otel_rollout.record.capture.encoding import ENCODERS, ENCODERS_OF_TOOLS, Encoder
from otel_rollout.record.capture.signature import Binder, Parameters, make_binder
from otel_rollout.record.recording.entered import EnteredTrajectory, present_context
from otel_rollout.record.recording.identity import NO_IDENTITY, OUTSIDE, Identity, identity_in, with_identity
from otel_rollout.record.recording.provider import UnrecordedSpan
from otel_rollout.record.recording.runtime_context import SPAN, TRAJECTORY, span_above
from otel_rollout.record.recording.span import RecordingSpan

Capture = Literal["all", "inputs", "outputs", "none"]
"""Which content of a call is recorded."""


_MAX_WRAPPERS: Final = 32
"""Maximum length of a ``__wrapped__`` chain that is searched for a decorated function."""


@dataclass(frozen=True)
class Options:
    """The options of :func:`otel_rollout.rollout_trace_op`."""

    name: str | None
    kind: str
    capture: Capture
    exclude: frozenset[str]
    record_super: bool
    token2text: bool | None


class Operation:
    """A decorated function, and the options of its decorator.

    An operation is pickled as its function and options, and rebuilt in the other process.

    Raises:
        ValueError: for a name in ``exclude`` that the function does not take.
    """

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.function = function
        self.options = options
        self.name = options.name or name_of(function)
        self.encoded_kind = span_io.KINDS[options.kind]
        self.encoded_name = json_string(self.name)
        self.is_evaluator = options.kind == semconv.KIND_EVALUATOR
        self.encoders = ENCODERS_OF_TOOLS if options.kind == semconv.KIND_TOOL else ENCODERS
        self.takes_input = options.capture in ("all", "inputs")
        self.takes_output = options.capture in ("all", "outputs")
        self.bind: Binder = make_binder(function, options.exclude)
        self.method = _method_name(function)

    def __reduce__(self) -> tuple[Any, ...]:
        return Operation, (self.function, self.options)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return what is recorded of a call's arguments, even if the function does not accept them."""
        try:
            return self.bind(*args, **kwargs)
        except TypeError:  # the function itself is about to raise the same error
            pass
        if self.options.exclude:  # nobody knows which of these arguments are excluded
            return {"args": f"<{len(args)} arguments>", "kwargs": sorted(kwargs)}
        return {"args": list(args), "kwargs": kwargs}


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's qualified name, or the name of a callable object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__name__))


def _method_name(function: Callable[..., Any]) -> str | None:
    try:
        has_receiver = Parameters(function).has_receiver
    except (TypeError, ValueError):
        return None
    return getattr(function, "__name__", None) if has_receiver else None


class _ActiveMethod:
    """The active operation and its receiver, which is released when the call ends."""

    __slots__ = ("operation", "receiver")

    def __init__(self, operation: Operation, receiver: Any) -> None:
        self.operation = operation
        self.receiver = receiver


class SampledOutCall:
    """A call that is sampled out; its context keeps the calls inside it unrecorded.

    During the call the context ``inside`` is current; before and after the call, ``outside`` is.
    """

    __slots__ = ("inside", "outside", "span")
    key: Final = SPAN
    """Key of the current span in this process. A pickled wrapper must not carry another process's key."""

    def __init__(self, span: Span, outside: Context) -> None:
        self.span = span
        self.outside = outside
        self.inside = Context({**outside, SPAN: span})

    def returned(self, result: Any) -> None:
        """Do nothing."""

    def raised(self, error: BaseException) -> None:
        """Do nothing."""


class RecordedCall(SampledOutCall):
    """One call that is being recorded."""

    __slots__ = ("_active_method", "_shows_text", "_trajectory", "encode", "limit")

    def __init__(
        self,
        span: Span,
        outside: Context,
        active_method: _ActiveMethod | None,
        trajectory: EnteredTrajectory | None,
        encode: Encoder | None,
        limit: int,
        shows_text: bool,
    ) -> None:
        # The hot path: no call of the base class.
        self.span = span
        self.encode = encode
        self.limit = limit
        self.outside = outside
        self.inside = Context({**outside, SPAN: span, OPERATION: active_method})
        self._active_method = active_method
        self._trajectory = trajectory
        self._shows_text = shows_text

    def returned(self, result: Any) -> None:
        """Record the result and end the span."""
        try:
            encode = self.encode
            if encode is not None:
                self.output(encode(result, self.limit))
            if type(result) is dict:
                is_reply = "usage" in result or usage.is_reply_of_call(self.span, result)
            else:
                is_reply = type(result) not in usage.PLAIN
            if is_reply:
                usage.record(self.span, self.outside.get(SPAN), result)
        finally:
            self.end()

    def raised(self, error: BaseException) -> None:
        """Record the exception and end the span."""
        try:
            span_io.fail(self.span, error)
        finally:
            self.end()

    def output(self, encoded: bytes) -> None:
        """Record the output, which is JSON."""
        span_io.put_json(self.span, semconv.OUTPUT_VALUE, encoded)
        if self._trajectory is not None:
            self._trajectory.offer_output(encoded, span_io.id_of(self.span) if self._shows_text else None)

    def end(self) -> None:
        """Release the receiver and end the span."""
        if self._active_method is not None:
            self._active_method.receiver = None
        self.span.end()


def start_call(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SampledOutCall | None:
    """Start to record a call; return None if it is not recorded. The caller makes ``inside`` current."""
    if (active := runtime.current()) is None:
        return None
    around: Any = (outside := get_current()).get(TRAJECTORY)
    if around is not None and around.is_over:  # rare; the check stands here to save a call
        outside = present_context()
    above = outside.get(SPAN)
    if type(above) is UnrecordedSpan:
        return None
    receiver = active_method = None
    if operation.method is not None and args:
        receiver = args[0]
        if _is_super_call(outside.get(OPERATION), operation, receiver):
            return None
        active_method = _ActiveMethod(operation, receiver)
    if type(above) is RecordingSpan:
        span: Span = active.tracer.start_below(
            above, operation.encoded_name, {semconv.SPAN_KIND: operation.encoded_kind}
        )
        trajectory, identity = above.trajectory, above.identity
    else:
        started, trajectory, identity = _start_below_another(active, operation, outside)
        if started is None:
            return None
        if not started.is_recording():
            return SampledOutCall(started, outside)
        span = started
    try:
        settings = active.settings
        mode, limit = settings.capture_content, settings.value_limit
        encode = operation.encoders[mode]
        if encode is not None and operation.takes_input:
            encoded = encode(operation.arguments(args, kwargs), limit)
            span_io.put_json(span, semconv.INPUT_VALUE, encoded)
            if trajectory is not None:
                trajectory.offer_input(encoded)
        encode = ENCODERS[mode] if operation.takes_output else None
        shows_text = operation.options.token2text
        if shows_text is None:
            shows_text = settings.token2text if identity.token2text is None else identity.token2text
        shows_text = shows_text and encode is not None and span_io.mark_for_text(active, span, receiver)
        call = RecordedCall(span, outside, active_method, trajectory, encode, limit, shows_text)
        if identity is OUTSIDE or operation.is_evaluator:
            _set_identity(call, identity)
        return call
    except BaseException:
        span.end()
        raise


def _set_identity(call: RecordedCall, identity: Identity) -> None:
    """Set the identity inside a call that is outside any trajectory, or of a call that evaluates one."""
    if identity.attributes:
        identity = identity.in_evaluator()
        if type(call.span) is RecordingSpan:
            call.span.identity = identity
        else:
            call.span.set_attribute(semconv.IN_EVALUATOR, True)
    call.inside = with_identity(identity, call.inside)


def _start_below_another(
    active: runtime.Runtime, operation: Operation, outside: Context
) -> tuple[Span | None, EnteredTrajectory | None, Identity]:
    """Start a span below no span of our provider; return the trajectory that it is directly below, too."""
    parent, identity, around = span_above(outside), identity_in(outside), outside
    if identity is NO_IDENTITY and not parent.get_span_context().is_valid:
        identity, around = OUTSIDE, with_identity(OUTSIDE, outside)
    started = span_io.start(active, operation.name, operation.options.kind, parent, around)
    trajectory = trajectory_in(outside)
    is_below = trajectory is not None and parent is trajectory.root
    return started, trajectory if is_below else None, identity


def _is_super_call(above: Any, operation: Operation, receiver: Any) -> bool:
    """Return whether a call is a ``super()`` call of the overriding method above it."""
    if above is None:
        return False
    overriding = above.operation
    return (
        receiver is above.receiver
        and receiver is not None
        and operation is not overriding
        and operation.method == overriding.method
        and not overriding.options.record_super
        and _overrides(overriding, operation, receiver)
    )


def _overrides(overriding: Operation, overridden: Operation, receiver: Any) -> bool:
    """Return whether a method precedes another in the receiver's MRO."""
    class_ = receiver if issubclass(type(receiver), type) else type(receiver)
    found = False
    for base in class_.__mro__:
        candidate = vars(base).get(str(overridden.method))
        if not found:
            found = _wraps(candidate, overriding.function)
        elif _wraps(candidate, overridden.function):
            return True
    return False


def _wraps(candidate: Any, function: Callable[..., Any]) -> bool:
    """Return whether ``candidate`` is ``function``, or wraps it (``__wrapped__``)."""
    for _ in range(_MAX_WRAPPERS):
        if candidate is function:
            return True
        candidate = getattr(candidate, "__wrapped__", None)
        if candidate is None:
            return False
    return False
