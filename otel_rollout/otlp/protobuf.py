"""Convert spans between OTLP/JSON, protobuf's fields and protobuf's own JSON; protobuf is not imported.

The conversion to fields makes no SDK spans, which would cost more than all other work. Google's JSON parser
would cost ten times as much, and it reads ids as base64 where OTLP has hex.

Fields that this module does not know are ignored, as OTLP demands. A wrong value in a known field raises an
exception, either from protobuf, which checks types and ranges, or from this module.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from otel_rollout.otlp.json_span import JsonSpan, spans_of_json
from otel_rollout.otlp.json_values import bytes_of_base64, double_of_json
from otel_rollout.otlp.reader import MAX_DEPTH, TOO_DEEP

_TRACE_ID_BYTES: Final = 16
_SPAN_ID_BYTES: Final = 8
_IDS: Final = ("traceId", "spanId", "parentSpanId")
_STATUS_CODES: Final = {"STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}


class RecordedSpan(NamedTuple):
    """A span, and its resource and scope with their schemas, as decoded JSON."""

    resource: bytes
    scope: bytes
    span: Mapping[str, Any]


def spans_in(lines: Iterable[bytes]) -> Iterator[RecordedSpan]:
    """Yield the spans of OTLP JSON Lines, one at a time."""
    for line in lines:
        for of_resource in orjson.loads(line)["resourceSpans"]:
            scopes = of_resource.pop("scopeSpans", None) or ()
            resource = orjson.dumps(of_resource)
            for of_scope in scopes:
                spans = of_scope.pop("spans", None) or ()
                scope = orjson.dumps(of_scope)
                for span in spans:
                    yield RecordedSpan(resource, scope, span)


def fields_of(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return a span as keyword arguments for protobuf, its fastest constructor.

    None means unset.
    """
    get = span.get
    return {
        "trace_id": _id(get("traceId"), _TRACE_ID_BYTES),
        "span_id": _id(get("spanId"), _SPAN_ID_BYTES),
        "trace_state": get("traceState"),
        "parent_span_id": _parent_id(get("parentSpanId")),
        "flags": _integer(get("flags")),
        "name": get("name"),
        "kind": _integer(get("kind")),
        "start_time_unix_nano": _integer(get("startTimeUnixNano")),
        "end_time_unix_nano": _integer(get("endTimeUnixNano")),
        "attributes": entries_of(get("attributes")),
        "dropped_attributes_count": _integer(get("droppedAttributesCount")),
        "events": [_event(event) for event in get("events") or ()],
        "dropped_events_count": _integer(get("droppedEventsCount")),
        "links": [_link(link) for link in get("links") or ()],
        "dropped_links_count": _integer(get("droppedLinksCount")),
        "status": _status(get("status")),
    }


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "time_unix_nano": _integer(event.get("timeUnixNano")),
        "name": event.get("name"),
        "attributes": entries_of(event.get("attributes")),
        "dropped_attributes_count": _integer(event.get("droppedAttributesCount")),
    }


def _link(link: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "trace_id": _id(link.get("traceId"), _TRACE_ID_BYTES, may_be_zero=True),
        "span_id": _id(link.get("spanId"), _SPAN_ID_BYTES, may_be_zero=True),
        "trace_state": link.get("traceState"),
        "attributes": entries_of(link.get("attributes")),
        "dropped_attributes_count": _integer(link.get("droppedAttributesCount")),
        "flags": _integer(link.get("flags")),
    }


def _status(status: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if status is None:
        return None
    return {"code": _integer(status.get("code")), "message": status.get("message")}


def entries_of(entries: Sequence[Mapping[str, Any]] | None, depth: int = 0) -> list[dict[str, Any]]:
    """Convert attributes or the entries of a map."""
    return [
        {"key": entry.get("key"), "value": _any_value(entry.get("value"), depth)} for entry in entries or ()
    ]


def _any_value(value: Mapping[str, Any] | None, depth: int) -> dict[str, Any] | None:
    if value is None:
        return None
    if depth > MAX_DEPTH:
        return {"string_value": TOO_DEEP}
    for type_, content in value.items():
        if content is None:
            continue
        if type_ == "stringValue":
            return {"string_value": content}
        if type_ == "boolValue":
            return {"bool_value": content}
        if type_ == "intValue":
            return {"int_value": _integer(content)}
        if type_ == "doubleValue":
            return {"double_value": double_of_json(content)}
        if type_ == "bytesValue":
            return {"bytes_value": bytes_of_base64(content)}
        if type_ == "arrayValue":
            return {
                "array_value": {"values": [_any_value(v, depth + 1) for v in content.get("values") or ()]}
            }
        if type_ == "kvlistValue":
            return {"kvlist_value": {"values": entries_of(content.get("values"), depth + 1)}}
    return {}


def _integer(value: Any) -> int | None:
    """Convert an integer; JSON may hold it as text or with a decimal point."""
    if value is None or type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is str:
        return int(value)
    raise ValueError(f"an integer expected, not {value!r}")


def _id(text: Any, size: int, may_be_zero: bool = False) -> bytes:
    """Decode an id in hex; only the id of a link may be all zeros."""
    found = bytes.fromhex(text)
    if len(found) != size or not (may_be_zero or any(found)):
        raise ValueError(f"no id of {size} bytes in hex: {text!r}")
    return found


def _parent_id(text: str | None) -> bytes | None:
    """Decode the parent's id; None if the id is missing or all zeros."""
    return _id(text, _SPAN_ID_BYTES) if text and text.strip("0") else None


def ids_to_hex(data: Mapping[str, Any]) -> None:
    """Change the ids of trace data from protobuf's JSON, which has base64, to OTLP/JSON's hex."""
    for span in spans_of_json(data) if data else ():  # a request without spans is empty
        for holder in (span.fields, *span.fields.get("links", ())):
            _ids_to_hex(holder)


def _ids_to_hex(holder: dict[str, Any]) -> None:
    for key in _IDS:
        if holder.get(key):
            holder[key] = base64.b64decode(holder[key]).hex()


def span_without_links(stored: Mapping[str, Any], renamed: Mapping[str, str]) -> JsonSpan:
    """Convert a span of protobuf's JSON with protobuf's names of fields, without its links.

    Args:
        stored: the span. A field with protobuf's default may be missing.
        renamed: name of an attribute → its name in the result.
    """
    span: dict[str, Any] = _camel_case(stored)
    _ids_to_hex(span)
    for entry in span.get("attributes", ()):
        entry["key"] = renamed.get(entry["key"], entry["key"])
    status = span.get("status") or {}
    status["code"] = _STATUS_CODES.get(str(status.get("code")), 0)
    span["status"] = status
    span.setdefault("startTimeUnixNano", 0)
    span.setdefault("endTimeUnixNano", span["startTimeUnixNano"])
    span.pop("links", None)
    return JsonSpan(span)


def _camel_case(message: Any) -> Any:
    if isinstance(message, Mapping):
        return {_camel(name): _camel_case(value) for name, value in message.items()}
    return [_camel_case(entry) for entry in message] if isinstance(message, list) else message


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
