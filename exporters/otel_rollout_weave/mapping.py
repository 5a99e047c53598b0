"""Map an OpenTelemetry span to a Weave call: pure functions, no I/O.

For the fields of a call see ``CompletedCallSchemaForInsert`` in weave's ``trace_server_interface.py`` (read
at 0.53).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations, model_calls
from otel_rollout.otlp.json_values import timestamp_of
from otel_rollout.otlp.span import Event, Span
from otel_rollout_weave import values
from otel_rollout_weave.ids import RUN_ID_ATTRIBUTE, call_id_of, marker_id_of, uuid_of
from otel_rollout_weave.nested_calls import Place
from otel_rollout_weave.scores import WeaveFeedback, to_feedback

MAX_OP_NAME_CHARS: Final = 128
"""Maximum characters of an operation's name in Weave; a longer name is cut."""
MAX_DISPLAY_NAME_CHARS: Final = 1024
"""Maximum characters of a call's displayed name, and of a thread's id; longer ones are cut."""
_FIRST_END_NS: Final = 1000
"""Earliest end of a call, Unix time in ns; in Weave's tables, a call with an end at 0 µs has not ended."""
_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+), in (.+)(?:\n    (.+))?', re.MULTILINE)
_KINDS: Final = {
    semconv.KIND_AGENT: "agent",
    semconv.KIND_EVALUATOR: "scorer",
    semconv.KIND_LLM: "llm",
    semconv.KIND_TOOL: "tool",
    "GUARDRAIL": "guardrail",
    "RETRIEVER": "search",
}
_USAGE: Final = (semconv.GEN_AI_USAGE_INPUT_TOKENS, semconv.GEN_AI_USAGE_OUTPUT_TOKENS)
"""Token counts in a call's usage, under the last part of each name."""
_ALONE: Final = Place()
_NOT_ATTRIBUTES: Final = frozenset({*semconv.MIME_TYPES, *semconv.MIME_TYPES.values()})
_NOT_EXTRA: Final = (semconv.SCORE_PREFIX, semconv.SCORE_TIME_PREFIX, semconv.TOKENS_PREFIX)


@dataclass(frozen=True)
class WeaveCall:
    """A finished call.

    Attributes:
        id: a UUID made of trace and span id.
        encoded: the call as JSON.
        frame: the call's fields except attributes, inputs and output.
        marker_id: id of the marker that showed the running trajectory; None if the span is no root.
        end_ns: when the span ended, Unix time in ns.
    """

    id: str
    encoded: bytes
    frame: Mapping[str, Any]
    marker_id: str | None
    end_ns: int

    def stand_in(self) -> bytes:
        """Make a small call with this call's id, parent and time.

        The stand-in replaces a call whose content Weave refuses. It contains nothing of the application's,
        since Weave may refuse any part of that content.
        """
        empty: dict[str, Any] = dict.fromkeys(("output", "thread_id", "turn_id", "wb_run_id", "wb_run_step"))
        empty |= {"attributes": {}, "inputs": {}, "op_name": "refused", "display_name": "refused"}
        empty |= {"summary": {}, "exception": "Weave refuses this call."}
        return values.to_json({**self.frame, **empty})


def to_call(
    span: Span,
    project_id: str,
    wb_run_id: str | None,
    known: Callable[[str], WeaveFeedback | None] = lambda _: None,
    place: Place = _ALONE,
) -> WeaveCall:
    """Make the call of a span that has ended.

    Args:
        span: the span.
        project_id: ``entity/project``.
        wb_run_id: W&B run that the call belongs to.
        known: returns the newest known score of a feedback id, or None.
        place: where the span is among the model calls of its trace.
    """
    source = span.attributes
    scores = _scores_shown(span, known)
    attributes = attributes_of(span)
    frame = _started(span, project_id, wb_run_id)
    is_turn = frame["thread_id"] and kind_of(source) == "llm" and not place.is_inside
    frame |= {
        "turn_id": frame["id"] if is_turn else None,
        "ended_at": timestamp_of(max(span.start_ns if span.is_running else span.end_ns, _FIRST_END_NS)),
        "exception": exception_of(span),
        "summary": summary_of(span, place.counted),
        "wb_run_step_end": None,
    }
    inputs, output = values.inputs_of(source), values.output_of(source, scores)
    encoded = values.to_json(frame | {"attributes": attributes, "inputs": inputs, "output": output})
    if values.stored_bytes(encoded) > values.MAX_CALL_BYTES:
        encoded = values.to_json(frame | values.shortened_parts(source, scores, attributes))
    return WeaveCall(
        id=frame["id"],
        encoded=encoded,
        frame=frame,
        marker_id=None if span.parent_id else marker_id_of(span),
        end_ns=span.end_ns,
    )


def to_marker(root: Span, project_id: str, wb_run_id: str | None) -> bytes:
    """Make the call that shows a trajectory while it runs."""
    started = _started(root, project_id, wb_run_id)
    started["id"] = marker_id_of(root)
    known = {"attributes": attributes_of(root), "inputs": values.inputs_of(root.attributes)}
    return values.to_json(started | known)


def _started(span: Span, project_id: str, wb_run_id: str | None) -> dict[str, Any]:
    """Return the fields that are known when a span starts."""
    source = span.attributes
    name = values.clean(span.name)
    display_name = values.clean(semconv.name_of_trace(name, source))
    return {
        "project_id": project_id,
        "id": call_id_of(span.trace_id, span.span_id),
        "trace_id": span.trace_id,
        "parent_id": call_id_of(span.trace_id, span.parent_id) if span.parent_id else None,
        "op_name": name[:MAX_OP_NAME_CHARS] or "unnamed",
        "display_name": display_name[:MAX_DISPLAY_NAME_CHARS] or None,
        "thread_id": thread_of(span),
        "turn_id": None,
        "started_at": timestamp_of(span.start_ns),
        "wb_run_id": wb_run_id,
        "wb_run_step": _step(source.get(semconv.STEP)),
    }


def thread_of(span: Span) -> str | None:
    """Return the id of a span's thread: trajectory, else session, else None."""
    source = span.attributes
    if any(name in source for name in semconv.IDENTITY):
        return span.trace_id
    session = source.get(semconv.SESSION_ID)
    return str(values.clean(str(session)))[:MAX_DISPLAY_NAME_CHARS] if session else None


def _scores_shown(span: Span, known: Callable[[str], WeaveFeedback | None]) -> dict[str, Any]:
    """Return the scores that a root repeats, in their newest state."""
    shown = {}
    for score in evaluations.repeated_by(span):
        repeated = to_feedback(call_id_of(span.trace_id, span.span_id), score)
        newer = known(repeated.id)
        is_newer = newer is not None and newer.rank > repeated.rank
        shown[values.clean(score.name)] = newer.value if newer and is_newer else values.clean(score.value)
    return shown


def exception_of(span: Span) -> str | None:
    """Describe a span's error in JSON as Weave's client does; None without an error."""
    if not span.has_failed:
        return None
    event = next((event for event in reversed(span.events) if event.name == "exception"), None)
    if event is None:
        message = values.clean(span.message)
        return values.to_json({"type": "Error", "message": message}).decode()
    raised = event.attributes
    described: dict[str, Any] = {
        "type": raised.get(semconv.EXCEPTION_TYPE, "Exception"),
        "message": raised.get(semconv.EXCEPTION_MESSAGE, ""),
    }
    frames = _FRAME.findall(str(raised.get(semconv.EXCEPTION_STACKTRACE, "")))
    if frames:
        described["traceback"] = [
            {"filename": file, "line_number": int(line), "function_name": function, "text": text or None}
            for file, line, function, text in frames
        ]
    return values.to_json(values.clean(described)).decode()


def summary_of(span: Span, counted: Collection[str] = ()) -> dict[str, Any]:
    """Return status and token usage; Weave adds up usage, and computes latency itself."""
    failed = span.has_failed
    summary: dict[str, Any] = {"status_counts": {"success": int(not failed), "error": int(failed)}}
    used = model_calls.usage_of(span.attributes) or {}
    known = {name.rpartition(".")[2]: used[name] for name in _USAGE if name in used and name not in counted}
    if known:
        model = values.clean(model_calls.model_of(span.attributes) or "unknown")
        summary["usage"] = {model: {"requests": 1, **known, "total_tokens": sum(known.values())}}
    return summary


def _step(step: Any) -> int | None:
    return step if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**63 else None


# --- attributes ---------------------------------------------------------------------------------------------


def kind_of(attributes: Mapping[str, Any]) -> str | None:
    """Return Weave's kind of an operation; None if Weave has no such kind."""
    return _KINDS.get(model_calls.kind_of(attributes))


def attributes_of(span: Span) -> dict[str, Any]:
    """Return a call's attributes: a trajectory's at the top, others nested at dots."""
    source = span.attributes
    attributes = {
        values.clean(semconv.short_name(name)): values.clean(value)
        for name, value in source.items()
        if name.startswith(semconv.EXTRA_PREFIX) and not name.startswith(_NOT_EXTRA)
    }
    if semconv.TURN_CONTINUES in source:  # a span id of this trace; Weave needs the call's id
        continued = uuid_of(f"{span.trace_id}/{values.clean(source[semconv.TURN_CONTINUES])}")
        attributes[semconv.short_name(semconv.TURN_CONTINUES)] = continued
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
        own = attributes.get("otel")  # instrumentation may name attributes `otel.…`
        attributes["otel"] = {**own, **rest} if isinstance(own, dict) else rest
    return attributes


def _nest(attributes: dict[str, Any], name: str, value: Any) -> None:
    """Put ``a.b`` below ``a``; if ``a`` is no object, use ``a.b`` as the key."""
    *path, last = name.split(".")
    parent: Any = attributes
    for part in path:
        parent = parent.setdefault(part, {})
        if not isinstance(parent, dict):
            break
    if isinstance(parent, dict) and last not in parent:
        parent[last] = value
        return
    while name in attributes:
        name = f"_{name}"
    attributes[name] = value


def _otel(span: Span) -> dict[str, Any]:
    """Return the parts of a span that have no field in a Weave call."""
    rest: dict[str, Any] = {}
    if span.error_message:
        rest["status_message"] = values.clean(span.error_message)
    if span.events:
        rest["events"] = [_event(event) for event in span.events]
    if span.links:
        rest["links"] = [
            {
                "trace_id": link.trace_id,
                "call_id": call_id_of(link.trace_id, link.span_id),
                "attributes": values.clean(link.attributes),
            }
            for link in span.links
        ]
    return rest


def _event(event: Event) -> dict[str, Any]:
    return {
        "name": values.clean(event.name),
        "time": timestamp_of(event.time_ns),
        "attributes": values.clean(event.attributes),
    }
