"""Find the input and output that a trajectory's root shows, if no operation of this package gives them.

They come from another library's span directly below the root, or from the messages of a model call on the
root itself: some libraries set such messages on the current span.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson
from opentelemetry.trace import Span

from otel_rollout.base import semconv
from otel_rollout.base.errors import pass_on
from otel_rollout.otlp import writer
from otel_rollout.otlp.json_values import attributes_of
from otel_rollout.record.recording.span import RecordingSpan

if TYPE_CHECKING:
    from otel_rollout.otlp.chat_messages import Event

_MAX_CHARS: Final = 16 << 10
"""Maximum characters of an input or output that a span gives to its root; a longer one is cut. Recorded
messages that are longer are not parsed."""
_MESSAGES: Final = {
    semconv.INPUT_VALUE: semconv.GEN_AI_INPUT_MESSAGES,
    semconv.OUTPUT_VALUE: semconv.GEN_AI_OUTPUT_MESSAGES,
}
_EVENT: Final = b'"name":"gen_ai.'


def offer(trajectory: Any, attributes: Mapping[str, Any], events: Iterable[Event], longest: int) -> None:
    """Offer a trajectory the input and output of a span directly below its root; never raise.

    They are the values of OpenInference's attributes, or else the messages of another vocabulary.

    Args:
        trajectory: the trajectory of the root.
        attributes: attributes of the span.
        events: events of the span.
        longest: maximum characters of the input, and of the output.
    """
    try:
        listed = list(events)
        trajectory.offer_both(
            _shown(semconv.INPUT_VALUE, attributes, listed, longest),
            _shown(semconv.OUTPUT_VALUE, attributes, listed, longest),
        )
    except Exception as error:  # noqa: BLE001 - another library's content may have any shape
        pass_on(error)


def _shown(name: str, attributes: Mapping[str, Any], events: Sequence[Event], longest: int) -> bytes | None:
    """Return a span's input or output as JSON, cut; None if it has none."""
    value, is_json = attributes.get(name), attributes.get(semconv.MIME_TYPES[name]) == semconv.JSON_MIME_TYPE
    if value is None:
        value, is_json = _messages(name, attributes, events), True
    if value is None:
        return None
    text, longest = str(value), min(_MAX_CHARS, longest)
    if len(text) > longest:
        return writer.json_string(f"{text[:longest]}… ({len(text) - longest} more characters)")
    if is_json:
        with suppress(orjson.JSONDecodeError):
            return orjson.dumps(orjson.loads(text))
    return writer.json_string(text)


def _messages(name: str, attributes: Mapping[str, Any], events: Sequence[Event]) -> str | None:
    """Return the messages of a span as JSON; None if the span has none in a known vocabulary."""
    from otel_rollout.otlp import model_calls  # here: most libraries set input.value and output.value

    if not model_calls.is_read_here([*attributes, *(event for event, _ in events)]):
        return None
    recorded = attributes.get(_MESSAGES[name])
    if isinstance(recorded, str) and len(recorded) > _MAX_CHARS:
        return recorded
    value = None
    if model_calls.kind_of(attributes) == semconv.KIND_LLM:
        call = model_calls.read_call(attributes, events)
        messages = call.messages if name == semconv.INPUT_VALUE else call.replies
        value = {"messages": messages} if messages else None
    if value is None:
        read = model_calls.read_input if name == semconv.INPUT_VALUE else model_calls.read_output
        value = read(attributes, events)
    return orjson.dumps(value, default=str).decode() if value is not None else None


def events_of(encoded: Iterable[bytes]) -> Iterator[Event]:
    """Yield name and texts of the GenAI events among recorded ones."""
    for event in encoded:
        if _EVENT in event:
            parsed = orjson.loads(event)
            attributes = attributes_of(parsed)
            yield parsed["name"], {key: text for key, text in attributes.items() if isinstance(text, str)}


def of_own_messages(root: Span) -> list[tuple[str, bytes]]:
    """Return the input and output in a root's own messages, as attribute names and JSON; never raise."""
    try:
        attributes, events = _messages_on(root)
        found = ((name, _messages(name, attributes, events)) for name in _MESSAGES)
        return [(name, text.encode()) for name, text in found if text is not None]
    except Exception as error:  # noqa: BLE001 - another library's content may have any shape
        pass_on(error)
        return []


def _messages_on(root: Span) -> tuple[dict[str, Any], list[Event]]:
    """Return the attributes and events with GenAI messages that other code has set on a root."""
    if type(root) is not RecordingSpan:
        own = getattr(root, "attributes", None) or {}
        told = [(event.name, event.attributes or {}) for event in getattr(root, "events", ())]
        return {name: own[name] for name in _MESSAGES.values() if name in own}, told
    encoded = root.encoded
    entries = [orjson.loads(b"".join(encoded[name])[1:]) for name in _MESSAGES.values() if name in encoded]
    found = attributes_of({"attributes": entries}).items()
    texts = {name: text if isinstance(text, str) else None for name, text in found}
    return texts, list(events_of(root.events))
