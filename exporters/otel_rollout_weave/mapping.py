"""From an OpenTelemetry span to a Weave call and its feedback: pure functions, no I/O.

What a call is, see ``CompletedCallSchemaForInsert`` in weave's ``trace_server_interface.py`` (read at 0.53).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import orjson
from opentelemetry.trace import StatusCode

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations
from otel_rollout_weave import values

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import SpanContext

    from otel_rollout.otlp.evaluations import Evaluation

MAX_OP_NAME: Final = 128
MAX_DISPLAY_NAME: Final = 1024
MAX_FEEDBACK_TEXT: Final = 10_000
RUN_ID_ATTRIBUTE: Final = "rollout_run_id"
"""Attribute of every call that names its rollout run: the resource's ``rollout.run.id``."""
RUN_FEEDBACK: Final = "wb_run"
"""Feedback type that ties a trajectory to a W&B run which began after the trajectory was written."""
SCORES_KEY: Final = "scores"
"""Where a root's output holds scores whose names it has keys of already."""

Rank = tuple[bool, int, bool]
"""Whether a score's time is known, that time in µs, whether it is explained: the greater counts."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_KINDS: Final = {
    semconv.KIND_AGENT: "agent",
    semconv.KIND_EVALUATOR: "scorer",
    semconv.KIND_LLM: "llm",
    semconv.KIND_TOOL: "tool",
    "GUARDRAIL": "guardrail",
    "RETRIEVER": "search",
}
_KIND_OF_OPERATION: Final = {
    "chat": "llm",
    "create_agent": "agent",
    "execute_tool": "tool",
    "generate_content": "llm",
    "invoke_agent": "agent",
    "text_completion": "llm",
}
_NOT_ATTRIBUTES: Final = frozenset(
    {
        semconv.INPUT_VALUE,
        semconv.INPUT_MIME_TYPE,
        semconv.OUTPUT_VALUE,
        semconv.OUTPUT_MIME_TYPE,
    }
)
_NOT_EXTRA: Final = (semconv.SCORE_PREFIX, semconv.SCORE_TIME_PREFIX)
_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+), in (.+)(?:\n    (.+))?', re.MULTILINE)


@dataclass(frozen=True)
class Call:
    """A finished call.

    Attributes:
        id: a UUID made of trace and span id.
        encoded: its JSON.
        frame: its fields without attributes, inputs and output.
        marker_id: id of what showed it while it ran; None below a root.
        ended_ns: when it ended, Unix time in ns.
    """

    id: str
    encoded: bytes
    frame: Mapping[str, Any]
    marker_id: str | None
    ended_ns: int

    def stand_in(self) -> bytes:
        """A small call of the same id, place and time, for one whose content Weave refuses.

        Nothing of the application's is in it: any of it may be what Weave refuses.
        """
        empty: dict[str, Any] = dict.fromkeys(("output", "thread_id", "turn_id", "wb_run_id", "wb_run_step"))
        empty |= {"attributes": {}, "inputs": {}, "op_name": "refused", "display_name": "refused"}
        empty |= {"summary": {}, "exception": "Weave refuses this call."}
        return values.to_json({**self.frame, **empty})


@dataclass(frozen=True)
class Feedback:
    """A score as Weave's feedback.

    Attributes:
        call_id: what was scored.
        name: feedback type; ``feedback.[<name>].payload.value`` filters and sorts.
        value: the score.
        time_ns: when it was given, Unix time in ns.
        explanation: why, if the scorer said so.
        is_dated: False for a root's score whose own time nobody recorded.
    """

    call_id: str
    name: str
    value: float | bool | str
    time_ns: int
    explanation: str | None = None
    is_dated: bool = True

    @property
    def id(self) -> str:
        """The same for the same score of the same call."""
        return _uuid(f"{self.call_id}/{self.name}")

    @property
    def rank(self) -> Rank:
        """Orders scores: of two the greater counts. Weave keeps times to the microsecond."""
        return self.is_dated, self.time_ns // 1000 if self.is_dated else 0, bool(self.explanation)

    def to_weave(self, project_id: str) -> dict[str, Any]:
        """As the server takes it."""
        payload: dict[str, Any] = {"value": self.value}
        if self.is_dated:
            payload["given_at"] = iso_time(self.time_ns)
        if self.explanation:
            payload["explanation"] = self.explanation
        return {
            "id": self.id,
            "project_id": project_id,
            "weave_ref": f"weave:///{project_id}/call/{self.call_id}",
            "feedback_type": self.name,
            "creator": "otel-rollout",
            "payload": payload,
        }


def rank_of(payload: Mapping[str, Any]) -> Rank:
    """The rank of a score that Weave has, by its payload."""
    has_explanation = bool(payload.get("explanation"))
    try:
        given_at = datetime.fromisoformat(str(payload["given_at"]))
        return True, (given_at - _EPOCH) // timedelta(microseconds=1), has_explanation
    except (KeyError, ValueError, TypeError):
        return False, 0, has_explanation


def newest(feedback: Iterable[Feedback]) -> dict[str, Feedback]:
    """Feedback id → the score that counts."""
    found: dict[str, Feedback] = {}
    for score in feedback:
        if score.id not in found or score.rank >= found[score.id].rank:
            found[score.id] = score
    return found


def call_id_of(context: SpanContext) -> str:
    """The id of a span's call: 64-bit span ids alone would collide within a large project."""
    return _uuid(f"{context.trace_id:032x}/{context.span_id:016x}")


def marker_id_of(context: SpanContext) -> str:
    """The id of the call that shows a trajectory while it runs; it goes when the trajectory's own comes.

    It is another call because Weave can add nothing but output and end to one it has.
    """
    return _uuid(f"{context.trace_id:032x}/{context.span_id:016x}/running")


def trace_id_of(span: ReadableSpan) -> str:
    """The trace's id, which is the thread's too."""
    return f"{_context(span).trace_id:032x}"


def to_call(
    span: ReadableSpan,
    project_id: str,
    wb_run_id: str | None,
    known: Callable[[str], Feedback | None] = lambda _: None,
) -> Call:
    """Make the call of a span that has ended.

    Args:
        span: the span.
        project_id: ``entity/project``.
        wb_run_id: W&B run that the call belongs to.
        known: finds the newest score that is known by its feedback id.
    """
    source = span.attributes or {}
    scores = _scores_shown(span, known)
    inputs = _inputs(source)
    output = _output(source, scores)
    attributes = _attributes(span)
    frame = _started(span, project_id, wb_run_id)
    frame |= {
        "ended_at": iso_time(span.end_time or span.start_time or 0),
        "exception": exception_of(span),
        "summary": summary_of(span),
        "wb_run_step_end": None,
    }
    content = {"attributes": attributes, "inputs": inputs, "output": output}
    encoded = values.to_json(frame | content)
    if values.stored_bytes(encoded) > values.MAX_CALL_BYTES:
        encoded = values.to_json(frame | _shortened(source, scores, attributes))
    return Call(
        id=frame["id"],
        encoded=encoded,
        frame=frame,
        marker_id=marker_id_of(_context(span)) if span.parent is None else None,
        ended_ns=span.end_time or 0,
    )


def to_marker(root: ReadableSpan, project_id: str, wb_run_id: str | None) -> bytes:
    """What shows a trajectory while it runs."""
    started = _started(root, project_id, wb_run_id)
    started["id"] = marker_id_of(_context(root))
    content = {"attributes": _attributes(root), "inputs": _inputs(root.attributes or {})}
    return values.to_json(started | content)


def _started(span: ReadableSpan, project_id: str, wb_run_id: str | None) -> dict[str, Any]:
    """The fields that are known when a span starts."""
    source = span.attributes or {}
    context = _context(span)
    call_id = call_id_of(context)
    name = values.clean(span.name)
    shown = values.clean(semconv.name_of_trace(name, source))
    thread = thread_of(span)
    return {
        "project_id": project_id,
        "id": call_id,
        "trace_id": f"{context.trace_id:032x}",
        "parent_id": call_id_of(span.parent) if span.parent is not None else None,
        "op_name": name[:MAX_OP_NAME] or "unnamed",
        "display_name": shown[:MAX_DISPLAY_NAME] or None,
        "thread_id": thread,
        "turn_id": call_id if thread and is_turn(span) else None,
        "started_at": iso_time(span.start_time or 0),
        "wb_run_id": wb_run_id,
        "wb_run_step": _step(source.get(semconv.STEP)),
    }


def thread_of(span: ReadableSpan) -> str | None:
    """A trajectory is a thread; a span outside of any belongs to the session it names, if it does."""
    source = span.attributes or {}
    session = source.get(semconv.SESSION_ID)
    if session:
        return str(values.clean(str(session)))[:MAX_DISPLAY_NAME]
    return trace_id_of(span) if any(name in source for name in semconv.IDENTITY) else None


def is_turn(span: ReadableSpan) -> bool:
    """Whether a span is a turn of its thread: a model call, as seen by the caller."""
    is_here = span.parent is None or not span.parent.is_remote
    return is_here and kind_of(span.attributes or {}) == "llm"


def kind_of(attributes: Mapping[str, Any]) -> str | None:
    """Weave's kind of an operation, or None where it has no name for it."""
    by_kind = _KINDS.get(str(attributes.get(semconv.SPAN_KIND)).upper())
    return by_kind or _KIND_OF_OPERATION.get(str(attributes.get(semconv.GEN_AI_OPERATION_NAME)))


def feedback_of(span: ReadableSpan) -> list[Feedback]:
    """The scores a span carries: a root's ``rollout.score.*``, or the verdict of an evaluation span."""
    source = span.attributes or {}
    own_id = call_id_of(_context(span))
    scored = [_feedback(own_id, score) for score in _repeated_in(span)]
    recorded = evaluations.recorded_in(source, span.start_time or 0)
    if recorded is not None:
        # An evaluation is a child of what it evaluates, so a late reward and the `rollout.score.*` of its
        # root are one feedback.
        scored.append(_feedback(call_id_of(span.parent) if span.parent else own_id, recorded))
    return scored


def _repeated_in(span: ReadableSpan) -> list[Evaluation]:
    return evaluations.repeated_in(span.attributes or {}, span.end_time or 0) if span.parent is None else []


def _scores_shown(span: ReadableSpan, known: Callable[[str], Feedback | None]) -> dict[str, Any]:
    """The scores that a root's output shows: those it repeats, as new as they are known."""
    shown = {}
    for score in _repeated_in(span):
        repeated = _feedback(call_id_of(_context(span)), score)
        found = known(repeated.id)
        shown[values.clean(score.name)] = (
            found.value if found and found.rank > repeated.rank else values.clean(score.value)
        )
    return shown


def run_feedback(call_id: str, run: str, time_ns: int) -> Feedback:
    """What ties a call that is written already to a W&B run."""
    return Feedback(call_id, RUN_FEEDBACK, run, time_ns)


def exception_of(span: ReadableSpan) -> str | None:
    """What went wrong, in the JSON form that weave's client writes; None where nothing did."""
    if span.status.status_code is not StatusCode.ERROR:
        return None
    event = next((event for event in reversed(span.events) if event.name == "exception"), None)
    if event is None:
        return values.to_json(
            {"type": "Error", "message": values.clean(span.status.description or "")}
        ).decode()
    raised = event.attributes or {}
    told: dict[str, Any] = {
        "type": raised.get(semconv.EXCEPTION_TYPE, "Exception"),
        "message": raised.get(semconv.EXCEPTION_MESSAGE, ""),
    }
    frames = _FRAME.findall(str(raised.get(semconv.EXCEPTION_STACKTRACE, "")))
    if frames:
        told["traceback"] = [
            {"filename": file, "line_number": int(line), "function_name": function, "text": text or None}
            for file, line, function, text in frames
        ]
    return values.to_json(values.clean(told)).decode()


def summary_of(span: ReadableSpan) -> dict[str, Any]:
    """Status and token usage. Weave works out latency and state itself, from times and exception."""
    source = span.attributes or {}
    failed = span.status.status_code is StatusCode.ERROR
    summary: dict[str, Any] = {"status_counts": {"success": int(not failed), "error": int(failed)}}
    used = {
        "input_tokens": _count(source.get(semconv.GEN_AI_USAGE_INPUT_TOKENS)),
        "output_tokens": _count(source.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS)),
    }
    known = {name: count for name, count in used.items() if count is not None}
    if known:
        model = str(values.clean(source.get(semconv.GEN_AI_REQUEST_MODEL) or "unknown"))
        summary["usage"] = {model: {"requests": 1, **known, "total_tokens": sum(known.values())}}
    return summary


def iso_time(time_ns: int) -> str:
    """A time as Weave keeps it, to the microsecond. Not by way of a float, which would move it."""
    return (_EPOCH + timedelta(microseconds=time_ns // 1000)).isoformat(timespec="microseconds")


def _inputs(attributes: Mapping[str, Any]) -> Any:
    """An object: what is recorded, or ``{"value": …}`` around what is none."""
    value, as_is = _payload(attributes, semconv.INPUT_VALUE, semconv.INPUT_MIME_TYPE)
    if isinstance(value, dict):
        return as_is or value
    return {} if value is None and as_is is None else {"value": as_is or value}


def _output(attributes: Mapping[str, Any], scores: Mapping[str, Any]) -> Any:
    """What is recorded; a root's scores are put in, so that ``output.reward`` finds them."""
    value, as_is = _payload(attributes, semconv.OUTPUT_VALUE, semconv.OUTPUT_MIME_TYPE)
    return _scored(value, scores) if scores else as_is or value


def _scored(value: Any, scores: Mapping[str, Any]) -> dict[str, Any]:
    """An output with scores in it; one whose name the output has already goes below ``scores``."""
    if value is None:
        return dict(scores)
    output = value if isinstance(value, dict) else {"value": value}
    beside = {name: score for name, score in scores.items() if name not in output}
    taken = {
        name: score for name, score in scores.items() if name in output and not _same(output[name], score)
    }
    if not taken:
        return {**beside, **output}
    below = SCORES_KEY
    while below in output or below in beside:
        below = f"_{below}"
    return {**beside, **output, below: taken}


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _payload(attributes: Mapping[str, Any], value: str, mime_type: str) -> tuple[Any, orjson.Fragment | None]:
    """Input or output, and its JSON where that can be passed on as it is."""
    given = attributes.get(value)
    if isinstance(given, str) and str(attributes.get(mime_type, "")).startswith(semconv.JSON_MIME_TYPE):
        try:
            return values.decoded(given)
        except (ValueError, RecursionError):
            pass  # said to be JSON, and is not
    return values.clean(given), None


def _shortened(
    source: Mapping[str, Any], scores: Mapping[str, Any], attributes: dict[str, Any]
) -> dict[str, Any]:
    """Inputs, output and attributes that together fit; what is small leaves its share to the others."""
    output, _ = _payload(source, semconv.OUTPUT_VALUE, semconv.OUTPUT_MIME_TYPE)
    inputs, _ = _payload(source, semconv.INPUT_VALUE, semconv.INPUT_MIME_TYPE)
    whole = {
        "attributes": attributes,
        "inputs": inputs if isinstance(inputs, dict) else {"value": inputs},
        "output": _scored(output, scores) if scores else output,
    }
    sizes = {name: values.stored_bytes_exact(values.clean(value)) for name, value in whole.items()}
    left = values.MAX_CALL_BYTES - 64 * 1024
    fitting: dict[str, Any] = {}
    for share, name in zip((3, 2, 1), sorted(sizes, key=lambda name: sizes[name]), strict=True):
        if sizes[name] <= left // share:
            fitting[name] = values.clean(whole[name])
        else:
            fitting[name] = values.shortened(whole[name], left // share)
        left -= min(sizes[name], left // share)
    return fitting


def _attributes(span: ReadableSpan) -> dict[str, Any]:
    """All attributes: a trajectory's without their prefix at the top, others nested at their dots."""
    source = span.attributes or {}
    attributes = {
        values.clean(name.removeprefix(semconv.EXTRA_PREFIX)): values.clean(value)
        for name, value in source.items()
        if name.startswith(semconv.EXTRA_PREFIX) and not name.startswith(_NOT_EXTRA)
    }
    if semconv.TURN_CONTINUES in source:  # a span of this trace, which Weave knows by its call
        continued = _uuid(f"{_context(span).trace_id:032x}/{values.clean(source[semconv.TURN_CONTINUES])}")
        attributes[semconv.TURN_CONTINUES.removeprefix(semconv.EXTRA_PREFIX)] = continued
    for name in sorted(source):  # "a" before "a.b"
        if name not in _NOT_ATTRIBUTES and not name.startswith(semconv.EXTRA_PREFIX):
            _nest(attributes, values.clean(name), values.clean(source[name]))
    run = span.resource.attributes.get(semconv.RUN_ID)
    if run:
        attributes[RUN_ID_ATTRIBUTE] = values.clean(run)
    kind = kind_of(source)
    if kind and isinstance(attributes.setdefault("weave", {}), dict):
        attributes["weave"].setdefault("kind", kind)
    rest = _otel(span)
    if rest:
        own = attributes.get("otel")  # what instrumentation names `otel.…` is there already
        attributes["otel"] = {**own, **rest} if isinstance(own, dict) else rest
    return attributes


def _nest(attributes: dict[str, Any], name: str, value: Any) -> None:
    """Put ``a.b`` where ``attributes.a.b`` finds it, or under its whole name where ``a`` is no object."""
    *path, last = name.split(".")
    place: Any = attributes
    for part in path:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            break
    if isinstance(place, dict) and last not in place:
        place[last] = value
        return
    while name in attributes:
        name = f"_{name}"
    attributes[name] = value


def _otel(span: ReadableSpan) -> dict[str, Any]:
    """What OpenTelemetry knows of a span and Weave has no field for."""
    rest: dict[str, Any] = {}
    if span.status.description:
        rest["status_message"] = values.clean(span.status.description)
    if span.events:
        rest["events"] = [_event(event) for event in span.events]
    if span.links:
        rest["links"] = [
            {
                "trace_id": f"{link.context.trace_id:032x}",
                "call_id": call_id_of(link.context),
                "attributes": values.clean(dict(link.attributes or {})),
            }
            for link in span.links
        ]
    return rest


def _event(event: Event) -> dict[str, Any]:
    return {
        "name": values.clean(event.name),
        "time": iso_time(event.timestamp),
        "attributes": values.clean(dict(event.attributes or {})),
    }


def _feedback(call_id: str, score: Evaluation) -> Feedback:
    value, why = values.clean(score.value), values.clean(score.comment[:MAX_FEEDBACK_TEXT])
    if isinstance(value, str):
        value = value[:MAX_FEEDBACK_TEXT]
    return Feedback(call_id, _feedback_type(score.name), value, score.time_ns, why or None, score.is_dated)


def _feedback_type(name: str) -> str:
    """The score's name as far as Weave takes it; names that begin alike stay apart."""
    cleaned = str(values.clean(name))
    if cleaned.startswith("wandb.") or cleaned == RUN_FEEDBACK:  # what the server refuses, and our own
        cleaned = f"_{cleaned}"
    if len(cleaned) <= MAX_OP_NAME:
        return cleaned
    digest = hashlib.sha256(cleaned.encode()).hexdigest()[:8]
    return f"{cleaned[: MAX_OP_NAME - 9]}~{digest}"


def _step(step: Any) -> int | None:
    return step if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**63 else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _uuid(key: str) -> str:
    """A UUID, of version 4 by its looks, that is the same for the same key."""
    digits = hashlib.sha256(key.encode(errors="replace")).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"


def _context(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    if context is None:
        raise ValueError(f"span {span.name!r} has no context")
    return context
