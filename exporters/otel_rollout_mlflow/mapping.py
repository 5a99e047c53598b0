"""Map an OpenTelemetry span to MLflow's span, by pure functions without I/O.

MLflow reads its own attributes (``mlflow.*``) from OTLP spans. It reads trace tags from the *root* span's
``mlflow.traceTag.<key>``, and makes a trace tag of every resource attribute. See
``mlflow/server/otel_api.py`` and ``SqlAlchemyStore.log_spans`` (read at 3.17).
``collector-config/to-mlflow.yaml`` is the same mapping for a Collector.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

from opentelemetry.util.types import AttributeValue

from otel_rollout.base import semconv
from otel_rollout.otlp import model_calls
from otel_rollout.otlp.origin import Resource
from otel_rollout.otlp.span import Event, Span
from otel_rollout_mlflow.storable import (
    DECODED_BY_MLFLOW,
    fits_integer,
    storable_attribute,
    storable_json,
    storable_text,
    tag_attribute,
)
from otel_rollout_mlflow.tags import trace_tags, useful_resource

PLACEHOLDER_PARENT: Final = "f" * 16
"""Span id that no span has: the parent of spans that stand for running roots."""
SPAN_INPUTS: Final = "mlflow.spanInputs"
SPAN_OUTPUTS: Final = "mlflow.spanOutputs"
CHAT_USAGE: Final = "mlflow.chat.tokenUsage"
SPAN_TYPE: Final = "mlflow.spanType"
TRACE_TAG_PREFIX: Final = "mlflow.traceTag."
TRACE_NAME_TAG: Final = "mlflow.traceName"
MAX_SESSION_CHARS: Final = 250
"""Maximum characters of a session's id; for a longer one, MLflow refuses the whole request."""
MAX_TRACE_NAME_CHARS: Final = 4096
"""Maximum characters of a trace's name; for a longer one, MLflow refuses the whole request."""
_USAGE: Final = {
    semconv.GEN_AI_USAGE_INPUT_TOKENS: "input_tokens",
    semconv.GEN_AI_USAGE_OUTPUT_TOKENS: "output_tokens",
    semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: "cache_read_input_tokens",
    semconv.GEN_AI_USAGE_CACHE_WRITE_INPUT_TOKENS: "cache_creation_input_tokens",
}
_SPAN_TYPES: Final = semconv.SPAN_KINDS - {"PROMPT", "UNKNOWN"}
"""Kinds that are types of MLflow's spans, too."""
_MAPPED_BY_NAME: Final = frozenset({*semconv.MIME_TYPES, *semconv.MIME_TYPES.values()})


def trace_name(root: Span) -> str:
    """Return the name of a root's trace, cut to the length that MLflow accepts."""
    return storable_text(semconv.name_of_trace(root.name, root.attributes)[:MAX_TRACE_NAME_CHARS])


def placeholder(root: Span) -> Span:
    """Map a running root to a span that MLflow shows until the ended root overwrites it.

    The placeholder's parent is the id of no span, because a span without a parent would end the trace. The
    placeholder's resource holds the trace's tags, because from a span that is no root, MLflow makes tags of
    resource attributes alone.
    """
    mapped = to_mlflow(root)
    return mapped.copy(
        parent_id=PLACEHOLDER_PARENT,
        resource=Resource({**mapped.resource.attributes, **trace_tags(mapped.attributes)}),
        events=(),
        links=(),
        status=0,
        message="",
        end_ns=mapped.start_ns,  # without an end, MLflow would compute a negative duration
    )


def to_mlflow(span: Span, resource: Resource | None = None) -> Span:
    """Copy a span with the attributes that MLflow reads, each value once.

    Args:
        span: a span that has ended.
        resource: resource of the copy; by default the useful part of the span's.
    """
    source = span.attributes
    attributes = {
        key: storable_attribute(value) for key, value in source.items() if key not in _MAPPED_BY_NAME
    }
    _set(attributes, SPAN_INPUTS, _payload(source, semconv.INPUT_VALUE))
    _set(attributes, SPAN_OUTPUTS, _payload(source, semconv.OUTPUT_VALUE))
    _set(attributes, SPAN_TYPE, attributes.get(SPAN_TYPE) or span_type(source))
    if not model_calls.NAMES_OF_COUNTS.isdisjoint(source):
        attributes.setdefault(CHAT_USAGE, _usage(source))
    if not span.parent_id:
        for key, text in trace_tags(source).items():
            attributes[TRACE_TAG_PREFIX + key] = tag_attribute(text)
        attributes[TRACE_TAG_PREFIX + TRACE_NAME_TAG] = tag_attribute(trace_name(span))
    # Set the session on every span: MLflow takes that of the first span that arrives, and without a session
    # id it takes a model call's conversation id.
    if not source.get(semconv.SESSION_ID):
        _set(attributes, semconv.SESSION_ID, session_of(source))
    for key in (semconv.SESSION_ID, semconv.GEN_AI_CONVERSATION_ID):
        if key in attributes:
            attributes[key] = str(attributes[key])[:MAX_SESSION_CHARS]
    return span.copy(
        name=storable_text(span.name),
        resource=resource or useful_resource(span.resource),
        attributes=attributes,
        events=[_storable_event(event) for event in span.events],
        message=storable_text(span.error_message),
    )


def _usage(attributes: Mapping[str, AttributeValue]) -> str:
    """Return a model call's token usage in MLflow's form; empty for other spans, which may repeat it.

    MLflow itself would count the tokens of any span, take true for 1, and add negative counts.
    """
    counts = model_calls.usage_of(attributes) or {}
    usage = {name: counts[key] for key, name in _USAGE.items() if key in counts}
    total = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
    return json.dumps({**usage, "total_tokens": total}) if usage else ""


def _storable_event(event: Event) -> Event:
    """Copy an event with text that every store holds."""
    attributes = {
        key: storable_text(value) if isinstance(value, str) else value
        for key, value in event.attributes.items()
    }
    return event._replace(name=storable_text(event.name), attributes=attributes)


def span_type(attributes: Mapping[str, AttributeValue]) -> str | None:
    """Return MLflow's span type; None for MLflow's default UNKNOWN.

    A model call is a CHAT_MODEL only if its operation is a chat. MLflow's chat view cannot show token ids,
    which most model calls of a rollout take and return.
    """
    # MLflow translates kinds itself, but after it has filled the column that `span.type = 'TOOL'` searches.
    kind = model_calls.kind_of(attributes)
    if kind == semconv.KIND_LLM and attributes.get(semconv.GEN_AI_OPERATION_NAME) == "chat":
        return "CHAT_MODEL"
    return kind if kind in _SPAN_TYPES else None


def session_of(attributes: Mapping[str, AttributeValue]) -> str | None:
    """Return the session of all trajectories of one training step.

    A step's validation is a separate session. The step comes first in the name, because MLflow's list of
    traces shows only the start of a session's name.
    """
    parts = []
    if semconv.STEP in attributes:
        validation = " (validation)" if attributes.get(semconv.VALIDATE) is True else ""
        parts.append(f"step {attributes[semconv.STEP]!s}{validation}")
    if semconv.EXPERIMENT_NAME in attributes:
        parts.append(str(attributes[semconv.EXPERIMENT_NAME]))
    return storable_text(" - ".join(parts)) or None


def _set(attributes: dict[str, AttributeValue], key: str, value: AttributeValue | None) -> None:
    if value is not None:
        attributes[key] = value


def _payload(attributes: Mapping[str, AttributeValue], name: str) -> AttributeValue | None:
    """Return input or output in the form that MLflow reads back unchanged.

    MLflow decodes a string attribute once if it holds a JSON object, array or string, and keeps other
    strings as text. So JSON scalars are sent as native values, and text that only looks like JSON is sent as
    a JSON string. For a string without a mime type, MLflow decides.
    """
    recorded, declared = attributes.get(name), attributes.get(semconv.MIME_TYPES[name])
    if not isinstance(recorded, str):
        return recorded
    recorded = storable_text(recorded)
    looks_decodable = recorded.lstrip()[:1] in DECODED_BY_MLFLOW
    if not isinstance(declared, str):
        return storable_json(recorded) if looks_decodable else recorded
    if not declared.startswith(semconv.JSON_MIME_TYPE):
        return json.dumps(recorded, ensure_ascii=False) if looks_decodable else recorded
    return storable_json(recorded) if looks_decodable else _json_scalar(recorded)


def _json_scalar(text: str) -> AttributeValue | None:
    try:
        value: AttributeValue | None = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, float):
        return value if math.isfinite(value) else text  # JSON has no NaN and no infinity
    if isinstance(value, int):
        return value if fits_integer(value) else text
    return value
