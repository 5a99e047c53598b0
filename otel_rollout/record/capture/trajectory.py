"""Record one trajectory: its identity, its block, and its root span."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, TypeVar

from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace import Span, get_current_span

from otel_rollout.base import semconv
from otel_rollout.base.errors import fault, internal_errors, warn_once
from otel_rollout.base.finalizers import COLLECTING, is_collecting
from otel_rollout.base.given import truth
from otel_rollout.otlp.groups import Group
from otel_rollout.record import runtime
from otel_rollout.record.capture import encoding, span_io, trajectory_decorator
from otel_rollout.record.capture.context import (
    OPERATION,
    STARTING,
    is_left_by,
    leave_ended_trajectories,
    span_of_another,
    trajectory_in,
    without_trajectory,
)
from otel_rollout.record.capture.trajectory_attributes import (
    PREVIEW_BYTES,
    Preview,
    cut_preview,
    extra_attribute,
    preview_json,
    recorded_identity,
)
from otel_rollout.record.recording import previews
from otel_rollout.record.recording.entered import ENTERED, present_context, running_task
from otel_rollout.record.recording.identity import Identity, identity_in, with_identity
from otel_rollout.record.recording.joined_span import end_never_ended
from otel_rollout.record.recording.runtime_context import SPAN, TRAJECTORY, span_above
from otel_rollout.record.recording.sampling import CHOSEN, GroupSampling
from otel_rollout.record.recording.span import RecordingSpan
from otel_rollout.record.recording.state import state
from otel_rollout.record.recording.writer import SegmentWriter

_ENTERED_TWICE: Final = (
    "a trajectory was entered a second time, which has no effect: call rollout_trace_attr() for each `with`"
)
_NOT_ENTERED: Final = "a trajectory was ended before it was entered, which has no effect: use `with`"
Function = TypeVar("Function", bound=Callable[..., Any])


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
    """Mark the block that produces one trajectory: ``with rollout_trace_attr(…):``.

    ``async with`` works as well. As a decorator, ``@rollout_trace_attr(step=1)``, it makes each call of a
    function a trajectory.

    Everything recorded inside belongs to the trajectory and carries its identity: in this thread or task, in
    asyncio tasks started from it, and after :func:`otel_rollout.instrument` also in thread pools, Ray tasks
    and actors. Names and meanings are those of verl's ``rollout_trace_attr``.

    Args:
        sample_index: index of the dataset row that was the prompt.
        step: training step. ``1``, ``1.0`` and NumPy's 1 are one step. This holds for ``sample_index`` and
            ``rollout_n``, too.
        rollout_n: index, from 0, of this trajectory in the group sampled for one prompt.
        name: name of the root span. MLflow and Weave list the trace by this name, but with the default name
            by step, sample and rollout: ``12/430/0``.
        validate: whether this is validation rather than training.
        trace: False records nothing inside the block, at next to no cost.
        token2text: whether operations inside, in this process, show token ids as text, unless an operation
            has a ``token2text`` of its own. None: the setting ``token2text`` decides.
        extra: further facts about the trajectory (``agent_name="tool_agent"``), recorded on its root span
            as ``rollout.<name>``. ``group_size=8`` is the number of siblings, see docs/volume.md.

    Returns:
        The trajectory. ``set_input`` and ``set_output`` choose what a list of traces shows. By default it
        shows the input of the first operation directly below the trajectory, and the output of the last.

    Raises:
        TypeError: when it decorates a function without parentheses.
    """
    if type(sample_index) is types.FunctionType:  # as a decorator, without parentheses
        raise TypeError("rollout_trace_attr: the decorator needs parentheses: @rollout_trace_attr(step=1)")
    return Trajectory(
        name,
        {
            semconv.STEP: step,
            semconv.SAMPLE_INDEX: sample_index,
            semconv.ROLLOUT_N: rollout_n,
            semconv.VALIDATE: validate,
        },
        extra,
        trace,
        token2text,
    )


class Trajectory:
    """A trajectory being recorded: made by :func:`rollout_trace_attr`, entered once.

    Attributes:
        identity (dict[str, Any]): attribute of the identity → value, as the caller gave it.
        is_over (bool): whether the trajectory's block has been left.
        is_left_open (bool): whether the garbage collector has left the block, without restoring the context.
        task (int): id of the asyncio task, or of the thread, that entered the block; 0 before.
        inside: the context in the block, while it runs.
        context_outside (Context): the context around the block.
    """

    is_left_open = False

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
        self.identity = identity
        self._extra = extra
        self._recorded = recorded
        self._entered = False
        self._reentered = 0
        self._is_apart = False
        self.is_over = False
        self.task = 0
        self.context_outside = Context()
        self._span: Span | None = None
        self.inside: Context | None = None
        self._input: Preview | None = None
        self._output: Preview | None = None
        self._text_of: str | None = None
        self._has_own_output = False
        self._writer: SegmentWriter | None = None
        self._slot: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a trajectory not yet entered: a recording does not leave its process."""
        return Trajectory, (self._name, self.identity, self._extra, self._recorded, self._token2text)

    @property
    def id(self) -> str | None:
        """The id for :func:`otel_rollout.score`, valid in any process and at any time.

        A string of 55 characters, to be kept beside the sample in the training batch: the W3C ``traceparent``
        of the root span (https://www.w3.org/TR/trace-context/). The last two digits are 00 if the trajectory
        is sampled out. None before the trajectory is entered, and if tracing is off.
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
        """The root span, non-recording if the trajectory is sampled out; None without one."""
        return self._span

    def another(self) -> Trajectory:
        """Return a trajectory like this one, not yet entered."""
        return Trajectory(self._name, self.identity, self._extra, self._recorded, self._token2text)

    def __call__(self, function: Function) -> Function:
        """Decorate a function: each call is a trajectory like this one.

        Raises:
            TypeError: for an argument that is no function.
        """
        return trajectory_decorator.decorate(self, function)

    # --- The block ------------------------------------------------------------------------------------------

    def __enter__(self) -> Trajectory:
        """Start the trajectory."""
        if self._entered:
            self._reentered += 1
            warn_once(_ENTERED_TWICE)
            return self
        self._entered = True
        try:
            try:
                self._enter()
            except Exception as error:  # noqa: BLE001 - user code goes on untraced
                fault(STARTING, error)
        except BaseException as error:  # a signal handler raised it: Python will not call `__exit__`
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        """End the trajectory; record an exception, and let it pass."""
        if self._reentered:
            self._reentered -= 1
            return
        if not self._entered:
            warn_once(_NOT_ENTERED)
            return
        # No `detach`: the garbage collector may close a coroutine or generator in another context, where
        # `detach` would log an error. Nearly always the context is `inside`: to compare it takes 0.04 us, and
        # `_is_in_block` 0.4 us.
        inside = self.inside
        outside = self.context_outside
        try:
            if COLLECTING and is_collecting():
                self.is_left_open = ENTERED.get() is self  # `present_context` leaves it later
            else:
                if inside is not None and (get_current() is inside or self._is_in_block(inside)):
                    attach(outside)
                    if TRAJECTORY in outside and not self._is_apart:
                        leave_ended_trajectories(outside)
                if ENTERED.get() is self:
                    ENTERED.set(trajectory_in(outside))
        except Exception as internal:  # noqa: BLE001
            fault("leaving a trajectory", internal)
        self.is_over = True
        try:
            self._exit(error)
        except Exception as internal:  # noqa: BLE001
            fault("ending a trajectory", internal)

    async def __aenter__(self) -> Trajectory:
        """Start the trajectory."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        """End the trajectory; record an exception, and let it pass."""
        self.__exit__(kind, error, stack)

    def _enter(self) -> None:
        active = runtime.current()
        if active is None:
            return
        self.task = running_task()
        outside = present_context()
        other = span_of_another(self, outside) if SPAN in outside else None
        self._is_apart = other is not None
        context = outside if other is None else without_trajectory(outside)
        parent = span_above(context)
        if (self._recorded is not True and not truth("trace=", self._recorded)) or (
            active.sampling is not None and self._is_sampled_out(active, active.sampling, parent, context)
        ):
            active.writer.counters.skip("sampled_out" if self._recorded else "switched_off")
            self._span = active.tracer.unrecorded(parent)
            self._attach(outside, context, self._span)
            return
        settings = active.settings
        identity = Identity(
            {
                semconv.PROJECT_NAME: settings.project_name,
                semconv.EXPERIMENT_NAME: settings.experiment,
                **recorded_identity(self.identity),
            },
            None if self._token2text is None else truth("token2text=", self._token2text),
        )
        identified = with_identity(identity, context)
        span = span_io.start(active, self._name, semconv.KIND_AGENT, parent, identified)
        if span is None:
            self._span = active.tracer.unrecorded(parent)
            if parent.get_span_context().is_remote:
                active.writer.counters.skip("caller")
            return
        self._span = span
        if type(span) is RecordingSpan:
            span.identity = identity  # not the identity of an outer trajectory
            span.trajectory = self
        if SPAN in context and parent.get_span_context().is_valid:
            span.set_attribute(semconv.BEGINS_TRAJECTORY, True)
        self._attach(outside, identified, span)
        if span.is_recording():
            if not identity_in(context).attributes:
                active.writer.counters.began_trajectory()
            self._describe(active, span, other)

    def _describe(self, active: runtime.Runtime, span: Span, other: Span | None) -> None:
        """Record extras, and a link to the span of another trajectory; register the running trajectory."""
        if other is not None and other.get_span_context().trace_flags.sampled:
            span.add_link(other.get_span_context())
        for name, value in self._extra.items():
            span.set_attribute(*extra_attribute(name, value, self.identity))
        self._writer = active.writer
        self._slot = active.writer.start_trajectory(functools.partial(span_io.unfinished_line, span))

    def _is_sampled_out(
        self, active: runtime.Runtime, sampling: GroupSampling, parent: Span, context: Context
    ) -> bool:
        """Return whether the group is sampled out; False inside another trajectory."""
        above = parent.get_span_context()
        if identity_in(context).attributes or (above.is_valid and not above.trace_flags.sampled):
            return False
        known = {semconv.EXPERIMENT_NAME: active.settings.experiment, **recorded_identity(self.identity)}
        return not sampling.takes(Group.of(known), context)

    def _attach(self, outside: Context, identified: Context, span: Span) -> None:
        """Make a context with the trajectory and its span the current one."""
        entries = {**identified, SPAN: span, TRAJECTORY: self}
        if OPERATION in entries:  # a call inside belongs to the trajectory, not to an operation around it
            entries[OPERATION] = None
        if CHOSEN in entries:  # used by now, and of no use in other processes
            entries[CHOSEN] = None
        inside = Context(entries)
        self.context_outside = outside
        self.inside = inside
        if not COLLECTING or not is_collecting():
            attach(inside)
            ENTERED.set(self)

    def _is_in_block(self, inside: Context) -> bool:
        """Return whether the current context, which is not ``inside``, belongs to the block."""
        context = present_context()
        return get_current_span(context) is get_current_span(inside) or is_left_by(self, context)

    def _exit(self, error: BaseException | None) -> None:
        if state.never_ended:
            end_never_ended()
        # Break the cycle of span, context and trajectory: some applications switch the garbage collector off.
        # Keep `context_outside`: an inner trajectory that ends later needs it.
        self.inside = None
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
        if self._input is not None:
            span_io.put_json(span, semconv.INPUT_VALUE, preview_json(self._input))
        if self._output is not None:
            span_io.put_json(span, semconv.OUTPUT_VALUE, preview_json(self._output))
        if (self._input is None or self._output is None) and (
            type(span) is not RecordingSpan or len(span.encoded) > 1 or span._details is not None
        ):  # more than its kind is set
            for key, encoded in previews.of_own_messages(span):
                span_io.put_json(span, key, encoded)
        if self._text_of is not None and not self._has_own_output:
            span.set_attribute(semconv.TEXT_OF, self._text_of)

    # --- Its input and output -------------------------------------------------------------------------------

    @internal_errors("setting a trajectory's input")
    def set_input(self, value: Any) -> None:
        """Record a value as the trajectory's input."""
        self._set(semconv.INPUT_VALUE, value)

    @internal_errors("setting a trajectory's output")
    def set_output(self, value: Any) -> None:
        """Record a value as the trajectory's output."""
        self._has_own_output = True
        self._set(semconv.OUTPUT_VALUE, value)

    def _set(self, key: str, value: Any) -> None:
        active = runtime.current()
        if active is not None and self._span is not None and self._span.is_recording():
            encode = encoding.ENCODERS[active.settings.capture_content]
            if encode is not None:
                span_io.put_json(self._span, key, encode(value, active.settings.value_limit))

    def offer_input(self, encoded: bytes) -> None:
        """Record the input of the first operation directly below as the trajectory's."""
        if self._input is None:
            self._input = encoded if len(encoded) <= PREVIEW_BYTES else cut_preview(encoded)

    def offer_output(self, encoded: bytes, text_of: str | None = None) -> None:
        """Record the output of the last operation directly below as the trajectory's.

        Args:
            encoded: what the operation returned, as JSON.
            text_of: id of the operation's span, if its token ids are shown as text.
        """
        self._output = encoded if len(encoded) <= PREVIEW_BYTES else cut_preview(encoded)
        self._text_of = text_of

    def offer_both(self, input_: bytes | None, output: bytes | None) -> None:
        """Record input and output of another library's span directly below, as JSON; ignore None."""
        if input_ is not None and self._input is None:
            self._input = input_
        if output is not None:
            self._output, self._text_of = output, None
