"""Read token usage, model and finish reason from a model's reply.

Replies of OpenAI and Anthropic are recognised by their fields. They may be SDK objects, similar objects of
other libraries, or dicts. This module imports no SDK and evaluates no property of an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.trace import Span

from otel_rollout.base import semconv
from otel_rollout.record.recording import doubles
from otel_rollout.record.recording.span import RecordingSpan

PLAIN: Final = frozenset({str, bytes, int, float, bool, type(None), list, tuple, set, frozenset})
"""Types of results that are never replies."""
_MARKS: Final = ("usage", "choices", "stop_reason")
"""Fields of which a reply has at least one."""
_INPUT: Final = ("prompt_tokens", "input_tokens")
_OUTPUT: Final = ("completion_tokens", "output_tokens")
_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details")
_OUTPUT_DETAILS: Final = ("completion_tokens_details", "output_tokens_details")
_CACHE_OF_ANTHROPIC: Final = ("cache_read_input_tokens", "cache_creation_input_tokens")
_WITHIN: Final = ("message", "response")
"""Fields that hold the reply in the first and last events of a stream: ``message`` of Anthropic, ``response``
of OpenAI's Responses API."""
_COUNTS: Final = (semconv.GEN_AI_USAGE_INPUT_TOKENS, semconv.GEN_AI_USAGE_OUTPUT_TOKENS)
_MAX_CHOICES: Final = 128
"""Maximum number of a reply's choices whose finish reasons are recorded."""
_MAX_COUNT: Final = 1 << 63
"""Token counts below this number are recorded; larger ones exceed OTLP's 64-bit integers."""

Attribute = int | str | list[str]


def is_reply_of_call(span: Span, result: Mapping[str, Any]) -> bool:
    """Return whether a dict without usage is the reply of a model call; other operations need no reason."""
    known = span.encoded if type(span) is RecordingSpan else getattr(span, "attributes", None) or {}
    return known.get(semconv.SPAN_KIND) in (doubles.LLM, semconv.KIND_LLM) and _has_mark(result)


def record(span: Span, above: Any, reply: Any) -> None:
    """Set a reply's attributes on its operation's span, unless the user has set them.

    Only the innermost operation that returns the reply gets the attributes, so that no token counts twice.

    Args:
        span: the span of the operation that returned the reply.
        above: the span around ``span``.
        reply: the operation's result.
    """
    fields = _fields(reply)
    if fields is not None and _has_mark(fields) and (found := read(reply)):
        record_once(span, above, found)


def _has_mark(fields: Mapping[str, Any]) -> bool:
    return any(mark in fields for mark in _MARKS)  # never iterates over a dict that another thread may change


def record_once(span: Span, above: Any, found: Mapping[str, Attribute]) -> None:
    """Set attributes of a reply on its operation's span, unless a span below has counted its tokens.

    What the user has set stays.
    """
    reply = doubles.CountedReply(found.get(semconv.GEN_AI_RESPONSE_ID), tuple(map(found.get, _COUNTS)))
    doubles.note_counted(above, reply)
    if doubles.is_counted_below(span, reply):
        return
    for name, value in found.items():
        known = span.encoded if type(span) is RecordingSpan else getattr(span, "attributes", None) or {}
        if name not in known:
            span.set_attribute(name, value)


def read(reply: Any) -> dict[str, Attribute]:
    """Return the attributes of a reply or a stream's event; empty for other values."""
    fields = _fields(reply)
    if fields is None:
        return {}
    usage = _fields(fields.get("usage"))
    if usage is None and isinstance(fields.get("type"), str):
        within = (_fields(fields.get(name)) for name in _WITHIN)
        fields = next((found for found in within if found is not None), fields)
        usage = _fields(fields.get("usage"))
    ending = _ending(fields)
    is_reply = usage is not None or bool(ending)  # a field `model` alone does not make a reply
    return {**(_tokens(usage) if usage else {}), **(_names(fields) if is_reply else {}), **ending}


def _tokens(usage: Mapping[str, Any]) -> dict[str, Attribute]:
    input_tokens = _number(usage, _INPUT)
    read, written = (_number(usage, (name,)) for name in _CACHE_OF_ANTHROPIC)
    if input_tokens is not None:
        # Anthropic counts cached tokens apart; OpenTelemetry's convention includes them.
        input_tokens += (read or 0) + (written or 0)
    for name in _DETAILS:
        details = _fields(usage.get(name))
        if details is not None:
            read = _number(details, ("cached_tokens",))
    of_output = [_fields(usage.get(name)) or {} for name in _OUTPUT_DETAILS]
    reasoning = [_number(details, ("reasoning_tokens",)) for details in of_output]
    counts = {
        semconv.GEN_AI_USAGE_INPUT_TOKENS: input_tokens,
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: _number(usage, _OUTPUT),
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: read,
        semconv.GEN_AI_USAGE_CACHE_WRITE_INPUT_TOKENS: written,
        semconv.GEN_AI_USAGE_REASONING_OUTPUT_TOKENS: next((n for n in reasoning if n is not None), None),
    }
    return {name: number for name, number in counts.items() if number is not None}


def _names(fields: Mapping[str, Any]) -> dict[str, Attribute]:
    """Return the model and the id of a reply. An engine knows its request by the id."""
    named = {semconv.GEN_AI_RESPONSE_MODEL: fields.get("model"), semconv.GEN_AI_RESPONSE_ID: fields.get("id")}
    return {name: str(value) for name, value in named.items() if isinstance(value, str) and value}


def _ending(fields: Mapping[str, Any]) -> dict[str, Attribute]:
    """Return why a reply ended, for each of its choices."""
    delta = _fields(fields.get("delta")) or {}  # the last events of Anthropic's streams
    choices = fields.get("choices")
    cut = _fields(fields.get("incomplete_details")) or {}  # OpenAI's Responses API
    reasons = [fields.get("stop_reason"), delta.get("stop_reason"), cut.get("reason")]
    if type(choices) is list:
        known = (_fields(choice) or {} for choice in choices[:_MAX_CHOICES])
        reasons += [choice.get("finish_reason") for choice in known]
    found = [str(reason) for reason in reasons if isinstance(reason, str)]
    return {semconv.GEN_AI_RESPONSE_FINISH_REASONS: found} if found else {}


def _number(fields: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        number = fields.get(name)
        if type(number) is int and 0 <= number < _MAX_COUNT:
            return number
    return None


def _fields(value: Any) -> Mapping[str, Any] | None:
    """Return a dict's entries, or the attributes stored in an object itself."""
    if type(value) in PLAIN:
        return None
    if type(value) is dict:
        return value
    try:
        stored = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return stored if type(stored) is dict else None
