"""One trajectory: its identity and its root span."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

import orjson
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import attach
from opentelemetry.trace import NonRecordingSpan, Span, get_current_span

from otel_rollout import runtime
from otel_rollout.base import semconv
from otel_rollout.base.errors import fault, warn
from otel_rollout.base.suggest import closest
from otel_rollout.capture import encoding, per_call, received, span_io
from otel_rollout.recording.identity import (
    NO_IDENTITY,
    PLAIN,
    Identity,
    builtin,
    identity_in,
    scalar,
    with_identity,
)
from otel_rollout.recording.sampling import CHOSEN, Group
from otel_rollout.recording.span import RecordingSpan
from otel_rollout.recording.writer import SegmentWriter

_KEY: Final = otel_context.create_key("otel-rollout-trajectory")
RUNNING: Final = otel_context.create_key("otel-rollout-operation")
"""Under what a context holds the operation that it is inside of."""
SPAN: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, otel_context.Context())))
"""Under what a context holds its span: so that span and other things are put into one with one copy."""
_ENTERED_TWICE: Final = (
    "a trajectory was entered a second time, which records nothing more: rollout_trace_attr() makes one for "
    "each `with`"
)
_NOT_ENTERED: Final = "a trajectory was ended that had not been entered, which does nothing: use `with`"
_IDENTITY: Final = {
    "sample_index": semconv.SAMPLE_INDEX,
    "step": semconv.STEP,
    "rollout_n": semconv.ROLLOUT_N,
    "validate": semconv.VALIDATE,
}
_ARGUMENTS: Final = (*_IDENTITY, "name", "token2text", "group_size")
_MISSPELT: Final = 0.77
"""Similarity to an argument from which an extra may be a misspelling: "validation" is, "trace_id" is not."""
_warned: set[str] = set()
"""Arguments of which a misspelling was warned of."""
PREVIEW_BYTES: Final = 16 << 10
"""JSON bytes of an operation's input or output that are shown on the root span as well."""
Function = TypeVar("Function", bound=Callable[..., Any])
_Offered = bytes | tuple[bytes, int]
"""JSON of an operation; if it is long its beginning, and the bytes that follow."""


def rollout_trace_attr(
    sample_index: Any = None,
    step: Any = None,
    rollout_n: Any = None,
    name: str = "rollout_trace",
    validate: bool = False,
    trace: bool = True,
    token2text: bool | None = None,
    **extra: Any,
) -> Trajectory:
    """Mark the block that produces one trajectory; use it with ``with`` or ``async with``.

    Or decorate a function, ``@rollout_trace_attr(step=1)``: each call of it is a trajectory.

    Everything recorded inside, in this thread or task and in asyncio tasks started from it, belongs to the
    trajectory and carries its identity; after :func:`otel_rollout.instrument`, also in thread pools, Ray
    tasks and actors. The names and their meaning are those of verl's ``rollout_trace_attr``.

    Args:
        sample_index: which dataset row was the prompt.
        step: training step. ``1``, ``1.0`` and NumPy's are the same step; so it is with rows and siblings.
        rollout_n: which sibling of the group sampled for one prompt, from 0.
        name: name of the root span, and of the trace in MLflow.
        validate: whether this is validation rather than training.
        trace: False records nothing inside the block, at next to no cost.
        token2text: whether operations inside, in this process, show the text of their token ids, unless they
            say so themselves. None: as the setting of that name says.
        extra: further facts about the trajectory (``agent_name="tool_agent"``), recorded on its root span
            as ``rollout.<name>``. ``group_size=8`` tells how many siblings there are, see docs/sampling.md.

    Returns:
        The trajectory, on which ``set_input`` and ``set_output`` choose what a list of traces shows. By
        default that is the input of the first operation directly below, and the output of the last.
    """
    if isinstance(sample_index, types.FunctionType):  # as a decorator, without parentheses
        raise TypeError(
            "rollout_trace_attr: with parentheses, also as a decorator: @rollout_trace_attr(step=1)"
        )
    identity = {
        semconv.STEP: step,
        semconv.SAMPLE_INDEX: sample_index,
        semconv.ROLLOUT_N: rollout_n,
        semconv.VALIDATE: validate,
    }
    return Trajectory(name, identity, extra, trace, token2text)


class Trajectory:
    """A trajectory being recorded. Made by :func:`rollout_trace_attr`; entered once.

    Attributes:
        is_over: whether its block has been left.
    """

    def __init__(
        self,
        name: str,
        identity: dict[str, Any],
        extra: dict[str, Any],
        recorded: bool,
        token2text: bool | None = None,
    ) -> None:
        self._token2text = token2text
        self._name = name
        self._identity = identity
        self._extra = extra
        self._recorded = recorded
        self._entered = False
        self._reentered = 0
        self._is_apart = False
        self.is_over = False
        self._span: Span | None = None
        self._inside: otel_context.Context | None = None
        self._outside: otel_context.Context | None = None
        self._input: _Offered | None = None
        self._output: _Offered | None = None
        self._text_of: str | None = None
        self._has_own_output = False
        self._writer: SegmentWriter | None = None
        self._slot: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as one that has not been entered: a recording does not leave its process."""
        return Trajectory, (self._name, self._identity, self._extra, self._recorded, self._token2text)

    @property
    def id(self) -> str | None:
        """What :func:`otel_rollout.score` knows the trajectory by, in any process and long after it ended.

        A string of 55 characters, to be kept beside the sample in the training batch: the W3C ``traceparent``
        of the root span (https://www.w3.org/TR/trace-context/). It says too when the trajectory is sampled
        out. None before the trajectory is entered, and where tracing is off.
        """
        if self._span is None:
            return None
        root = self._span.get_span_context()
        return f"00-{root.trace_id:032x}-{root.span_id:016x}-{root.trace_flags:02x}"

    @property
    def trace_id(self) -> str | None:
        """The trace id, 32 hex digits; None when nothing is recorded."""
        if self._span is None or not self._span.get_span_context().trace_flags.sampled:
            return None
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def root(self) -> Span | None:
        """The root span; one that does not record where the trajectory is left out, None before it begins."""
        return self._span

    def another(self) -> Trajectory:
        """A trajectory like this one, not yet entered."""
        return Trajectory(self._name, self._identity, self._extra, self._recorded, self._token2text)

    def __call__(self, function: Function) -> Function:
        """Decorate a function, coroutine function or generator function: each call is a trajectory like this.

        Raises:
            TypeError: for something that is no function.
        """
        return per_call.traced(self, function)

    # --- the block ----------------------------------------------------------------------------------------

    def __enter__(self) -> Trajectory:
        """Begin the trajectory."""
        if self._entered:
            self._reentered += 1
            warn(_ENTERED_TWICE)
            return self
        self._entered = True
        try:
            try:
                self._enter()
            except Exception as error:  # noqa: BLE001 - user code goes on untraced
                fault("beginning a trajectory", error)
        except BaseException as error:  # a signal's: the block is not going to run, nor its end
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        """End the trajectory; an exception is recorded and goes on its way."""
        if self._reentered:
            self._reentered -= 1
            return
        if not self._entered:
            warn(_NOT_ENTERED)
            return
        self.is_over = True
        # Not by `detach`: a coroutine or generator may be closed from another context than it ran in (by
        # the garbage collector, say), where the token is refused and an error logged. By the span, as the
        # block may have put something else into the context, and left it there.
        outside = self._outside
        if outside is not None and get_current_span() is get_current_span(self._inside):
            attach(outside)
            try:
                if _KEY in outside and not self._is_apart:
                    _leave_what_is_over(outside)
            except Exception as internal:  # noqa: BLE001
                fault("leaving a trajectory", internal)
        try:
            self._exit(error)
        except Exception as internal:  # noqa: BLE001
            fault("ending a trajectory", internal)

    async def __aenter__(self) -> Trajectory:
        """Begin the trajectory."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        """End the trajectory; an exception is recorded and goes on its way."""
        self.__exit__(kind, error, stack)

    def _enter(self) -> None:
        active = runtime.current()
        if active is None:
            return
        outside = otel_context.get_current()
        over = _span_of_what_is_over(outside) if SPAN in outside else None
        self._is_apart = over is not None
        context = outside if over is None else _apart_from_all(outside)
        parent = trace.get_current_span(context)
        if not self._recorded:
            active.writer.counters.skip("switched_off")
            self._span = active.tracer.unrecorded(parent)
            self._step_inside(outside, context, self._span)
            return
        settings = active.settings
        if self._is_sampled_out(active, parent, context):
            active.writer.counters.skip("sampled_out")
            self._span = active.tracer.unrecorded(parent)
            self._step_inside(outside, context, self._span)
            return
        identity = Identity(
            {
                semconv.PROJECT_NAME: settings.project_name,
                semconv.EXPERIMENT_NAME: settings.experiment,
                **_recorded(self._identity),
            },
            self._token2text,
        )
        if self._makes_room(active, parent, identity):
            active.writer.counters.skip("spool_full")
            self._step_inside(outside, context, active.tracer.unrecorded(parent))
            return
        identified = with_identity(identity, context)
        span = span_io.start(active, self._name, semconv.KIND_AGENT, parent, identified)
        if span is None:
            self._span = active.tracer.unrecorded(parent)
            if parent.get_span_context().is_remote:
                active.writer.counters.skip("caller")
            return
        self._span = span
        if type(span) is RecordingSpan:
            span.identity = identity  # its own, not the one of a trajectory around it
            span.trajectory = self
        self._step_inside(outside, identified, span)
        if span.is_recording():
            if over is not None and over.get_span_context().trace_flags.sampled:
                span.add_link(over.get_span_context())
            for key, value in self._extra.items():
                if (meant := _similar_argument(key)) is not None:
                    self._warn_if_misspelt(key, meant)
                span.set_attribute(_name_of_extra(key), _fact(key, value))
            self._writer = active.writer
            self._slot = active.writer.start_trajectory(functools.partial(span_io.unfinished_line, span))

    def _warn_if_misspelt(self, given: str, meant: str) -> None:
        """Warn, once for each argument, of an extra that is named like an argument nobody gave."""
        value = self._identity.get(_IDENTITY.get(meant, ""))
        is_given = value is not None and value is not False
        if meant not in _warned and not is_given:
            _warned.add(meant)
            warn(
                f"rollout_trace_attr has no argument {given!r}, which is recorded as "
                f"{semconv.EXTRA_PREFIX}{given}; perhaps {meant!r} is meant"
            )

    def _is_sampled_out(self, active: runtime.Runtime, parent: Span, context: otel_context.Context) -> bool:
        """Whether the trajectory's group is not recorded. A part of another one goes with that."""
        sampling = active.sampling
        if sampling is None:
            return False
        above = parent.get_span_context()
        if identity_in(context).attributes or (above.is_valid and not above.trace_flags.sampled):
            return False
        known = {semconv.EXPERIMENT_NAME: active.settings.experiment, **_recorded(self._identity)}
        return not sampling.takes(Group.of(known), context)

    def _makes_room(self, active: runtime.Runtime, parent: Span, identity: Identity) -> bool:
        """Whether the trajectory is left out because the spool fills up.

        Not where it is part of a trace already; nor in an application's own provider, whose other exporters
        have nothing to do with our spool.
        """
        return (
            not active.writer.has_room_for(identity)
            and not parent.get_span_context().is_valid
            and active.application_tracer() is None
        )

    def _step_inside(
        self, outside: otel_context.Context, identified: otel_context.Context, span: Span
    ) -> None:
        entries = {**identified, SPAN: span, _KEY: self}
        if RUNNING in entries:  # what is called inside belongs to the trajectory, not to an operation around
            entries[RUNNING] = None
        if CHOSEN in entries:  # it has been asked for, and need not travel on
            entries[CHOSEN] = None
        inside = otel_context.Context(entries)
        self._outside, self._inside = outside, inside
        attach(inside)

    def _exit(self, error: BaseException | None) -> None:
        # Span, context and trajectory refer to each other: let go, for those who switch the collector off.
        # The context outside stays: blocks may be left in another order than they were entered in.
        self._inside = None
        span = self._span
        if span is None:
            return
        try:
            if span.is_recording():
                self._conclude(span, error)
        finally:
            self._input = self._output = None
            if type(span) is RecordingSpan:
                span.trajectory = None
            try:
                span.end()
            finally:
                if self._writer is not None and self._slot is not None:
                    self._writer.end_trajectory(self._slot)
                    self._slot = None

    def _conclude(self, span: Span, error: BaseException | None) -> None:
        if error is not None:
            span_io.fail(span, error)
        for key, offered in ((semconv.INPUT_VALUE, self._input), (semconv.OUTPUT_VALUE, self._output)):
            if offered is not None:
                span_io.put_json(span, key, _preview(*offered) if isinstance(offered, tuple) else offered)
        if self._text_of is not None and not self._has_own_output:
            span.set_attribute(semconv.TEXT_OF, self._text_of)

    # --- what it shows ------------------------------------------------------------------------------------

    def set_input(self, value: Any) -> None:
        """Show ``value`` as what the trajectory was asked."""
        try:
            self._set(semconv.INPUT_VALUE, value)
        except Exception as error:  # noqa: BLE001
            fault("setting a trajectory's input", error)

    def set_output(self, value: Any) -> None:
        """Show ``value`` as what came of the trajectory."""
        self._has_own_output = True
        try:
            self._set(semconv.OUTPUT_VALUE, value)
        except Exception as error:  # noqa: BLE001
            fault("setting a trajectory's output", error)

    def _set(self, key: str, value: Any) -> None:
        active = runtime.current()
        if active is not None and self._span is not None and self._span.is_recording():
            encode = encoding.ENCODERS[active.settings.capture_content]
            if encode is not None:
                span_io.put_json(self._span, key, encode(value, active.settings.value_limit))

    def offer_input(self, encoded: bytes) -> None:
        """An operation directly below began; the first one's input stands for the trajectory's."""
        if self._input is None:
            self._input = encoded if len(encoded) <= PREVIEW_BYTES else _beginning(encoded)

    def offer_output(self, encoded: bytes, text_of: str | None = None) -> None:
        """An operation directly below returned; the last one's output stands for the trajectory's.

        Args:
            encoded: what it returned.
            text_of: its span's id, if the text of its token ids is shown.
        """
        self._output = encoded if len(encoded) <= PREVIEW_BYTES else _beginning(encoded)
        self._text_of = text_of


@functools.lru_cache(maxsize=256)
def _name_of_extra(extra: str) -> str:
    """Name the attribute of an extra; one that is named like an attribute of ours gets another."""
    name = semconv.EXTRA_PREFIX + extra
    if name not in semconv.NO_EXTRAS and not name.startswith(
        (semconv.SCORE_PREFIX, semconv.SCORE_TIME_PREFIX)
    ):
        return name
    renamed = semconv.EXTRA_RENAMED + extra
    warn(f"rollout_trace_attr: {extra!r} is recorded as {renamed}, because {name} has a meaning of its own")
    return renamed


@functools.lru_cache(maxsize=256)
def _similar_argument(extra: str) -> str | None:
    """The argument of ``rollout_trace_attr`` that an extra's name is similar to, if any."""
    return None if extra in _ARGUMENTS else closest(extra, _ARGUMENTS, _MISSPELT)


def trajectory_in(context: otel_context.Context) -> Trajectory | None:
    """The trajectory that ``context`` is inside of, in this process."""
    found = context.get(_KEY)
    return found if type(found) is Trajectory else None


def _recorded(identity: Mapping[str, Any]) -> dict[str, bool | int | float | str | None]:
    """Identity values as they are recorded. Whether it is validation is always said, as a bool."""
    known = {key: value if type(value) in PLAIN else _scalar(value) for key, value in identity.items()}
    if type(known[semconv.VALIDATE]) is not bool:
        known[semconv.VALIDATE] = bool(known[semconv.VALIDATE])
    return known


def _span_of_what_is_over(context: otel_context.Context) -> Span | None:
    """The span that a trajectory begun in ``context`` has nothing to do with any more, if there is one.

    A task keeps the context that it was started in: a worker started inside a trajectory, an operation or a
    request of the application begins trajectories there when that is over. So does one started in a call from
    another process. Whether the trajectory there is over is not known here, but whether the call is.
    """
    around = trajectory_in(context)
    if around is not None:
        return around.root or trace.INVALID_SPAN if around.is_over else None
    span = get_current_span(context)
    if isinstance(span, NonRecordingSpan):
        return span if received.is_over(context) else None
    return None if span.is_recording() else span


def _apart_from_all(context: otel_context.Context) -> otel_context.Context:
    """What else is in a context, without its span and trajectory: for one that begins a trace of its own."""
    return with_identity(NO_IDENTITY, otel_context.Context({**context, SPAN: trace.INVALID_SPAN}))


def _leave_what_is_over(context: otel_context.Context) -> None:
    """Go on outside of trajectories around that ended first, with whatever else is in ``context``."""
    outside, around = context, trajectory_in(context)
    while around is not None and around.is_over and around._outside is not None:
        outside = around._outside
        around = trajectory_in(outside)
    if outside is not context:
        ours = {SPAN: get_current_span(outside), _KEY: around, RUNNING: outside.get(RUNNING)}
        attach(with_identity(identity_in(outside), otel_context.Context({**context, **ours})))


def _scalar(value: Any) -> bool | int | float | str | None:
    """An identity value as a type OTLP has, so that it is the same in every process and backend."""
    return _simple(scalar(value), value)


def _fact(name: str, value: Any) -> bool | int | float | str | None:
    """Return an extra's value as a type OTLP has: a float stays one, but a group's size is a whole number."""
    return _scalar(value) if name == "group_size" else _simple(builtin(value), value)


def _simple(held: Any, value: Any) -> bool | int | float | str | None:
    """Return a builtin scalar as it is, else the value as JSON; text without JSON's quotes."""
    if held is None or isinstance(held, (bool, int, float, str)):
        return held
    encoded = encoding.to_json(value, PREVIEW_BYTES)
    return str(orjson.loads(encoded)) if encoded.startswith(b'"') else encoded.decode()


def _beginning(encoded: bytes) -> tuple[bytes, int]:
    """What is kept of long JSON: the next operation's may take its place."""
    return encoded[:PREVIEW_BYTES], len(encoded) - PREVIEW_BYTES


def _preview(beginning: bytes, more: int) -> bytes:
    """Long JSON of an operation as shown on the root: a string."""
    text = beginning.decode("utf-8", "ignore")
    return encoding.to_json(f"{text}… ({more} more bytes)", 2 * PREVIEW_BYTES)
