"""Record scores of trajectories: rewards, advantages, verdicts, labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeGuard

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout.base import semconv
from otel_rollout.base.errors import Unusable, fault, pass_on, warn_once, was_reported
from otel_rollout.base.given import reading, text_given
from otel_rollout.base.redaction_names import MARK
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.groups import Group
from otel_rollout.record import runtime
from otel_rollout.record.capture import encoding, span_io
from otel_rollout.record.capture.context import STARTING, is_in_trajectory, trajectory_in
from otel_rollout.record.capture.trajectory_attributes import PREVIEW_BYTES, recorded_identity
from otel_rollout.record.recording.entered import present_context
from otel_rollout.record.recording.identity import Identity, identity_in, with_identity
from otel_rollout.redaction import redaction

Score = float | bool | str
_NAMED_TWICE: Final = "has trajectory= and step=, sample_index=, rollout_n=, validate=; give one of them"
_UNNAMED: Final = (
    "is named by step= and sample_index=, and by rollout_n= if the row has several trajectories; give them, "
    "or trajectory="
)
_SHOWN_CHARS: Final = 60
"""Maximum characters of a score's name in a warning."""
_traceparent = TraceContextTextMapPropagator()


def score(
    name: str,
    value: Any,
    *,
    comment: str | None = None,
    trajectory: str | None = None,
    step: Any = None,
    sample_index: Any = None,
    rollout_n: Any = None,
    validate: Any = False,
) -> None:
    """Score a trajectory: a reward, an advantage, a verdict, a label.

    By default the current trajectory is scored; outside any trajectory, the score is ignored, with a warning.
    With ``trajectory`` or an identity, any trajectory is scored: running or ended, of any process and node,
    before or after its delivery. An identity needs ``step`` and ``sample_index``, and must fit one
    trajectory.

    Of several scores with one name, the newest counts, wherever it was given. Nothing is raised: a value that
    is no score causes a warning and is not recorded. ``Report.sampled_out`` counts scores whose trajectory is
    not recorded, and scores whose ``trajectory`` is no id.

    Args:
        name: the score's name, for example ``"reward"``; 1 to 250 characters.
        value: a number, a bool or a label. A scalar of numpy or torch is recorded as a builtin number, a
            member of an enumeration as its value.
        comment: the reason, in words.
        trajectory: :attr:`Trajectory.id` of the trajectory.
        step: the trajectory's step.
        sample_index: the trajectory's dataset row.
        rollout_n: the trajectory's index in its group; not needed if the row has one trajectory in the step.
        validate: whether the step is a validation.
    """
    try:
        active = runtime.current()
        if active is None:
            return
        given = _given(active, name, value)
        if given is None:
            return
        named = {"step": step, "sample_index": sample_index, "rollout_n": rollout_n, "validate": validate}
        if trajectory is step is sample_index is rollout_n is None and validate is False:
            _score_current(active, name, given, comment)
            return
        check_named(trajectory, named)
        if trajectory is None:
            _score_by_identity(active, named, name, given, comment)
        else:
            _score_by_id(active, trajectory, name, given, comment)
    except Unusable as error:
        warn_once(f"score() recorded nothing: {error}", f"score {error.subject}")
    except Exception as error:  # noqa: BLE001
        fault("recording a score", error)


def _given(active: runtime.Runtime, name: object, value: Any) -> Score | None:
    """Return the value as it is recorded, redacted; warn and return None if it is no score."""
    if not is_score_name(name, "score"):
        return None
    try:
        given = as_score(value)
    except Exception as error:  # noqa: BLE001 - raised by a method of the value
        pass_on(error)
        warn_once(
            f"score({str(name)[:_SHOWN_CHARS]!r}, …) recorded nothing: value= is a {type(value).__name__}, "
            "which is no score; give a number, True or False, or a text",
            once_for=f"score value {type(value)}",
        )
        return None
    if evaluations.is_label(given) and redaction.hides(active.settings.redact, name):
        return MARK  # on the evaluation span, the attribute has another name
    return given


def check_named(trajectory: object, named: Mapping[str, Any]) -> None:
    """Check that a caller names trajectories in one way.

    Args:
        trajectory: what the caller gives as their ids.
        named: ``step``, ``sample_index``, ``rollout_n`` and ``validate`` as the caller gives them.

    Raises:
        Unusable: ids and identities are given, or neither.
    """
    if trajectory is None:
        if named["step"] is None or named["sample_index"] is None:
            raise Unusable(_UNNAMED, "a trajectory")
    elif any(value is not None and value is not False for value in named.values()):
        raise Unusable(_NAMED_TWICE, "it")


def _score_current(active: runtime.Runtime, name: str, value: Score, comment: str | None) -> None:
    context = present_context(is_for_score=True)
    inside = trajectory_in(context)
    if inside is not None and inside.root is not None:
        _score_inside(active, inside.root, context, name, value, comment)
    elif inside is None and identity_in(context).attributes:
        scored = trace.get_current_span(context)
        _record(active, scored, context, name, value, comment, semconv.ORIGIN_PROCESS)
    elif not is_in_trajectory(context):
        above = trace.get_current_span(context).get_span_context()
        is_callers = above.is_valid and not above.trace_flags.sampled  # a trajectory that is not recorded
        if is_callers or was_reported(STARTING):
            return
        warn_once(
            f"score({name[:_SHOWN_CHARS]!r}, …) is ignored outside any trajectory; call it inside the `with` "
            "block of the trajectory, or pass trajectory=",
            once_for="score outside",
        )


def _score_inside(
    active: runtime.Runtime, root: Span, context: Context, name: str, value: Score, comment: str | None
) -> None:
    # A task may outlive its trajectory. An ended root span accepts no attributes.
    if not root.is_recording():
        _record(active, root, context, name, value, comment, semconv.ORIGIN_OUTSIDE)
        return
    given_at = _record(active, root, context, name, value, comment, None)
    root.set_attribute(semconv.SCORE_PREFIX + name, value)
    if given_at is not None:
        root.set_attribute(semconv.SCORE_TIME_PREFIX + name, given_at)


def _score_by_id(active: runtime.Runtime, id_: str, name: str, value: Score, comment: str | None) -> None:
    # Start from an empty context: the caller's own trajectory is not the scored one.
    text = ""
    with reading("trajectory=", "score() recorded nothing"):
        text = text_given(id_)
    context = _traceparent.extract({"traceparent": text}, Context())
    scored = trace.get_current_span(context)
    if not scored.get_span_context().is_valid:
        active.writer.counters.skip("score_of_unknown")
    elif not scored.get_span_context().trace_flags.sampled:
        active.writer.counters.skip("score_of_unrecorded")
    else:
        context = with_identity(Identity(active.project), context)
        _record(active, scored, context, name, value, comment, semconv.ORIGIN_OUTSIDE)


def _score_by_identity(
    active: runtime.Runtime, named: Mapping[str, Any], name: str, value: Score, comment: str | None
) -> None:
    known = recorded_identity({semconv.EXTRA_PREFIX + part: given for part, given in named.items()})
    identity = Identity({**active.project, **known})
    sampling = active.sampling
    if sampling is not None and sampling.excludes(Group.of(identity.attributes)):
        active.writer.counters.skip("score_of_unrecorded")
        return
    # Not through the application's own provider: its sampler decides about the application's traces.
    kind = span_io.KINDS[semconv.KIND_EVALUATOR]
    context = with_identity(identity, Context())
    span = active.tracer.start_apart(f"score {name}", context, {semconv.SPAN_KIND: kind})
    _finish(span, name, value, comment, semconv.ORIGIN_IDENTITY)


def _record(
    active: runtime.Runtime,
    scored: Span,
    context: Context,
    name: str,
    value: Score,
    comment: str | None,
    origin: str | None,
) -> int | None:
    """Record a score as an evaluation span of length zero; return its time in ns."""
    below = trace.set_span_in_context(scored, context)
    span = span_io.start(active, f"score {name}", semconv.KIND_EVALUATOR, scored, below)
    if span is None:
        return None
    _finish(span, name, value, comment, origin)
    return getattr(span, "start_time", None)  # a span that does not record has none


def _finish(span: Span, name: str, value: Score, comment: str | None, origin: str | None) -> None:
    """Set a score on its evaluation span, and end the span."""
    text = None
    try:
        if comment is not None:
            with reading("comment=", "score() recorded no comment"):
                text = str(comment)
        span.set_attributes(evaluations.attributes_of(name, value, text, origin))
        span_io.put_json(span, semconv.OUTPUT_VALUE, encoding.to_json(value, PREVIEW_BYTES))
    finally:
        span.end()


def is_score_name(name: object, function: str, result: str = "recorded nothing") -> TypeGuard[str]:
    """Return whether a score may have a name; if not, warn.

    Args:
        name: the name.
        function: the public function that was called, for the warning.
        result: what the function did, for the warning.
    """
    text: Any = name if issubclass(type(name), str) else None  # `isinstance` asks the object, which may raise
    if text is not None and 0 < len(text) <= semconv.MAX_SCORE_NAME_CHARS:
        return True
    shown = (
        f"a {type(name).__name__}"
        if text is None
        else f"a text of {len(text)} characters, {text[:_SHOWN_CHARS]!r}"
    )
    subject = "name=" if function == "score" else "its name"
    warn_once(
        f"{function}() {result}: {subject} is {shown}; give a text of 1 to "
        f'{semconv.MAX_SCORE_NAME_CHARS} characters, as in score("reward", 1.0)',
        once_for=f"{function} name {type(name)} {text == ''}",
    )
    return False


def as_score(value: Any) -> Score:
    """Return a value as it is recorded.

    Raises:
        Exception: the value is no score, or a method of it raises.
    """
    if isinstance(value, Enum):
        value = value.value
    if not isinstance(value, (bool, int, float, str)) and hasattr(value, "item"):
        value = value.item()  # a scalar of numpy or torch
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if not hasattr(value, "__float__"):
        raise TypeError("no number")
    number = float(value)
    return number if math.isfinite(number) else str(number)
