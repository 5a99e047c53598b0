"""Make a call's attributes from a span's attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.otlp.span import Event, Span
from otel_rollout_weave import values
from otel_rollout_weave.feedback import iso_time
from otel_rollout_weave.ids import call_id_of, uuid_of

RUN_ID_ATTRIBUTE: Final = "rollout_run_id"
"""Attribute of every call with the id of its rollout run, the resource's ``rollout.run.id``."""
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
_NOT_EXTRA: Final = (semconv.SCORE_PREFIX, semconv.SCORE_TIME_PREFIX, semconv.TOKENS_PREFIX)


def kind_of(attributes: Mapping[str, Any]) -> str | None:
    """Return Weave's kind of an operation; None if Weave has no such kind."""
    by_kind = _KINDS.get(str(attributes.get(semconv.SPAN_KIND)).upper())
    return by_kind or _KIND_OF_OPERATION.get(str(attributes.get(semconv.GEN_AI_OPERATION_NAME)))


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
        "time": iso_time(event.time_ns),
        "attributes": values.clean(event.attributes),
    }
