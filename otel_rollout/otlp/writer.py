"""Write spans as OTLP/JSON, from fragments of bytes.

The encoding's rules (OpenTelemetry protocol, "JSON Protobuf Encoding"): ids in lower-case hex, enums
as integers, 64-bit integers as strings, bytes in base64. The file format is the OTel File Exporter's: one
``TracesData`` object per line.

Fragments take half the time of nested dicts, because the common parts of a trajectory's spans are encoded
once.
"""

from __future__ import annotations

import base64
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union, cast

import orjson
from opentelemetry.util.types import AttributeValue

from otel_rollout.base.errors import Unusable, pass_on, warn_once
from otel_rollout.base.given import items, listed

AttributeInput = Union["AttributeValue", bytes, Mapping[str, Any], None]
"""Types of an attribute's value: OpenTelemetry's, and those that newer versions of its API add."""

SCOPES = b'"scopeSpans":[{'
"""The end of a line's resource head."""
LIST_END = b"]}]}]}\n"
"""The end of a line after its last span: closes the span list, the scope and the resource."""
_LINE_END = b"}" + LIST_END

HAS_IS_REMOTE, IS_REMOTE = 0x100, 0x200
"""Bits of OTLP's flags. ``IS_REMOTE``: the span's parent, or the link's target, is in another process.
``HAS_IS_REMOTE``: the bit ``IS_REMOTE`` is valid.
"""

MAX_DEPTH = 16
"""Maximum depth of lists and mappings in an attribute; deeper ones become text.

Receivers that parse protobuf refuse a request with more than 100 nested messages; a mapping takes three.
"""
MAX_ENTRIES = 1 << 18
"""Maximum entries of lists and mappings in an attribute, all together: token ids of a long context."""
_MAX_DECIMAL_BITS = 10_000
"""Maximum bits of an integer written in decimal: 3,000 digits. Python is slow above, and refuses 4,301."""
_MAX_TIME_NS = (1 << 63) - 1
_ID_MASKS = (1 << 128) - 1, (1 << 64) - 1
_FLAGS_MASK = 0xFF | HAS_IS_REMOTE | IS_REMOTE
_PLAIN_TYPES = frozenset({str, bool, int, float})
_BACKSLASH = ord("\\")
_dumps = orjson.dumps


def json_string(text: str) -> bytes:
    """Encode a JSON string; lone surrogates, which UTF-8 cannot encode, become '?'."""
    if type(text) is not str:  # applications may pass any object as a name or a key
        text = text_of(text)
    try:
        return _dumps(text)
    except orjson.JSONEncodeError:
        return _dumps(text.encode("utf-8", "replace").decode())


def attribute_of_json(head: bytes, encoded: bytes) -> tuple[bytes, ...]:
    """Encode, in pieces, an attribute whose value is JSON in a string.

    Args:
        head: result of :func:`head_of_string`.
        encoded: JSON as orjson writes it: UTF-8 without control characters.
    """
    if _BACKSLASH in encoded:
        if encoded.isascii():  # faster with many escapes, but far slower for text that is not ASCII
            return head[:-1], _dumps(encoded.decode("ascii")), b"}}"
        encoded = encoded.replace(b"\\", b"\\\\")
    return head, encoded.replace(b'"', b'\\"'), b'"}}'


def head_of_string(key: str) -> bytes:
    """Encode a string attribute up to the string's first character."""
    return head_of(key) + b'{"stringValue":"'


def any_value(value: AttributeInput) -> bytes:
    """Encode an OTLP ``AnyValue``; a type unknown to OTLP becomes its ``str``."""
    type_ = type(value)
    if type_ is str:
        return b'{"stringValue":%b}' % json_string(cast("str", value))
    if type_ is bool:
        return b'{"boolValue":true}' if value else b'{"boolValue":false}'
    if type_ is int:
        number = cast("int", value)
        return b'{"intValue":"%d"}' % number if -(1 << 63) <= number < 1 << 63 else _as_text(number)
    if type_ is float:
        return b'{"doubleValue":%b}' % _double(cast("float", value))
    return _uncommon_value(value)


def _uncommon_value(value: Any, depth: int = 0, left: list[int] | None = None) -> bytes:
    if value is None:
        return b"{}"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b'{"bytesValue":"%b"}' % base64.b64encode(value)
    if isinstance(value, (Mapping, Sequence)) and not isinstance(value, str):
        if depth == MAX_DEPTH:
            return _as_text(value)
        left = left or [MAX_ENTRIES]
        found = listed(items(value) if isinstance(value, Mapping) else value, left[0])
        left[0] -= len(found)
        if isinstance(value, Mapping):
            entries = {str(key): entry for key, entry in found}
            pairs = [b"%b%b}" % (head_of(key), _below(entry, depth, left)) for key, entry in entries.items()]
            return b'{"kvlistValue":{"values":[%b]}}' % b",".join(pairs)
        return b'{"arrayValue":{"values":[%b]}}' % b",".join([_below(entry, depth, left) for entry in found])
    # Enums with a value type, subclasses of str, and numpy's numbers, which are registered.
    for base, type_ in ((bool, bool), (int, int), (float, float), *_REGISTERED):
        if isinstance(value, base):
            return any_value(type_(value))
    return _as_text(value)


_REGISTERED: tuple[tuple[type, type], ...] = ((numbers.Integral, int), (numbers.Real, float))
"""Abstract type → type as which its instances are written."""


def _below(value: Any, depth: int, left: list[int]) -> bytes:
    """Encode an entry of a list or mapping at ``depth``; ``left`` holds how many entries may follow."""
    return any_value(value) if type(value) in _PLAIN_TYPES else _uncommon_value(value, depth + 1, left)


def _as_text(value: object) -> bytes:
    if type(value) is int and value.bit_length() > _MAX_DECIMAL_BITS:
        return b'{"stringValue":"%b"}' % hex(value).encode()
    return b'{"stringValue":%b}' % json_string(str(value))


def _double(value: float) -> bytes:
    if math.isfinite(value):
        return _dumps(value)
    return b'"NaN"' if math.isnan(value) else b'"Infinity"' if value > 0 else b'"-Infinity"'


def attribute(key: str, value: AttributeInput) -> bytes:
    """Encode one attribute (OTLP ``KeyValue``)."""
    return b"%b%b}" % (head_of(key), any_value(value))


def head_of(key: str) -> bytes:
    """Encode an attribute up to its value."""
    return b'{"key":%b,"value":' % json_string(key)


def attribute_list(attributes: Mapping[str, AttributeInput]) -> bytes:
    """Encode a list of attributes."""
    return b"[%b]" % b",".join([attribute(key, value) for key, value in items(attributes)])


def attribute_list_at_once(attributes: Mapping[str, Any]) -> bytes:
    """Encode a list of attributes by one call, which takes half the time.

    Raises:
        TypeError: a text cannot be encoded. :func:`attribute_list` can encode any text.
    """
    return _dumps(
        [
            {"key": k, "value": {"stringValue": v} if type(v) is str else _value_at_once(v)}
            for k, v in attributes.items()
        ]
    )


def _value_at_once(value: Any) -> Any:
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return {"intValue": str(value)}
    if type(value) is float and math.isfinite(value):
        return {"doubleValue": value}
    return orjson.Fragment(any_value(value))


def kept_attributes(attributes: Mapping[str, AttributeInput]) -> tuple[bytes, int]:
    """Encode a list of attributes that another library gave; never raise.

    Returns:
        The list without the attributes that cannot be encoded, and the number of these.
    """
    try:
        return attribute_list(attributes), 0
    except Exception as error:  # noqa: BLE001 - of a value's own methods
        pass_on(error)
    kept: list[bytes] = []
    dropped = 0
    try:
        for key, value in items(attributes):
            try:
                kept.append(attribute(key, value))
            except Exception as error:  # noqa: BLE001 - of a value's own methods
                pass_on(error)
                warn_of_failure("attribute", key, error)
                dropped += 1
    except Exception as error:  # noqa: BLE001 - of the mapping's own methods
        pass_on(error)
        warn_of_failure("attributes", None, error)
        dropped += 1
    return b"[%b]" % b",".join(kept), dropped


def warn_of_failure(part: str, name: object, error: Exception) -> None:
    """Log, once for each part and type of error, that a part of a span is not recorded."""
    type_ = type(error).__name__
    named = f"{part} {name!r}" if type(name) is str else part
    reason = f" {error}" if isinstance(error, Unusable) else f" raised {type_} while it was encoded"
    warn_once(
        f"a span is recorded without its {named}, which{reason}; the span counts what it lacks",
        f"{part} {type_}",
    )


def valid_time(value: object, default: int) -> int:
    """Return a time in ns since 1970; ``default`` for anything else, such as None."""
    if value is None:
        return default
    if type(value) is not int:
        try:
            number: Any = value  # `isinstance` asks the object, which may raise
            value = int(number) if issubclass(type(number), (int, float, numbers.Integral)) else -1
        except (ValueError, OverflowError):  # NaN, infinity
            value = -1
    if 0 < value <= _MAX_TIME_NS:
        return value
    if value:
        warn_once("a library gave a span a time that is not in ns since 1970; the present time replaces it")
    return default


def text_of(value: object) -> str:
    """Return a name as text, whatever another library gave as name; never raise."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - of the value's own methods
        pass_on(error)
        return f"<{type(value).__name__}>"


def resource_head(resource: Mapping[str, AttributeInput], schema_url: str = "") -> bytes:
    """Encode the beginning of a line, up to the scope: the resource."""
    return b"%b]},%b%b" % (open_resource_head(resource), schema_of(schema_url), SCOPES)


def open_resource_head(resource: Mapping[str, AttributeInput]) -> bytes:
    """Encode a line up to the last of these resource's attributes; further attributes can follow."""
    return b'{"resourceSpans":[{"resource":{"attributes":%b' % attribute_list(resource)[:-1]


def scope_head(
    name: str, version: str | None, attributes: Mapping[str, AttributeInput] | None, schema_url: str | None
) -> bytes:
    """Encode the instrumentation scope, and the beginning of the span list."""
    parts = [b'"name":%b' % json_string(name)]
    if version:
        parts.append(b'"version":%b' % json_string(version))
    if attributes:
        parts.append(b'"attributes":%b' % kept_attributes(attributes)[0])
    return b'%b"scope":{%b},"spans":[' % (schema_of(schema_url), b",".join(parts))


def schema_of(url: str | None) -> bytes:
    """Encode the schema of a resource or scope; nothing without one."""
    return b'"schemaUrl":%b,' % json_string(url) if url else b""


def event(name: str, time_ns: int, attributes: Mapping[str, AttributeInput]) -> bytes:
    """Encode a span event; count attributes that cannot be encoded as dropped."""
    return b'{"timeUnixNano":"%d","name":%b,"attributes":%b}' % (
        time_ns,
        json_string(name),
        _attributes_of_part(attributes),
    )


def link(
    trace_id: int, span_id: int, trace_state: str, flags: int, attributes: Mapping[str, AttributeInput]
) -> bytes:
    """Encode a span link; count attributes that cannot be encoded as dropped."""
    return b'{"traceId":"%032x","spanId":"%016x","traceState":%b,"flags":%d,"attributes":%b}' % (
        trace_id & _ID_MASKS[0],  # a library may link to an invalid context
        span_id & _ID_MASKS[1],
        json_string(trace_state),
        flags & _FLAGS_MASK,
        _attributes_of_part(attributes),
    )


def _attributes_of_part(attributes: Mapping[str, AttributeInput]) -> bytes:
    """Encode the attributes of an event or a link, and the number of dropped ones."""
    kept, dropped = kept_attributes(attributes)
    return b'%b,"droppedAttributesCount":%d' % (kept, dropped) if dropped else kept


def head_below(trace_id: bytes, parent_id: bytes, flags: int) -> bytes:
    """Encode the common beginning of all spans below one span, up to their own id.

    Args:
        trace_id: in hex.
        parent_id: in hex; empty for roots.
        flags: W3C trace flags in the low byte, OTLP's "parent is remote" bits above.
    """
    return b'{"parentSpanId":"%b","flags":%d,"traceId":"%b","spanId":"' % (parent_id, flags, trace_id)


def line(
    scope: bytes,
    head: bytes,
    span_id: bytes,
    name: bytes,
    kind: int,
    start_ns: int,
    end_ns: int,
    attributes: Iterable[bytes],
    details: bytes = b"",
) -> tuple[bytes, ...]:
    """Return the pieces of a line with one span, without the resource head.

    Args:
        scope: result of :func:`scope_head`.
        head: result of :func:`head_below`.
        span_id: in hex.
        name: as a JSON string.
        kind: OTLP ``SpanKind``: the API's value plus one.
        attributes: the pieces of an attribute list, see :func:`attribute_list`.
        details: the fields after the attributes: :meth:`Details.encoded` and :func:`trace_state`.
    """
    described = b'","name":%b,"kind":%d,"startTimeUnixNano":"%d","endTimeUnixNano":"%d","attributes":' % (
        name,
        kind,
        start_ns,
        end_ns,
    )
    return scope, head, span_id, described, *attributes, details, _LINE_END


def trace_state(header: str) -> bytes:
    """Encode a span's trace state, given as W3C's ``tracestate`` header."""
    return b',"traceState":%b' % json_string(header) if header else b""


@dataclass
class Details:
    """Events, links and status of a span: few spans have any.

    Attributes:
        events: results of :func:`event`.
        links: results of :func:`link`.
        dropped: numbers of attributes, events and links beyond the limits.
        status: OTLP ``StatusCode``.
        status_message: message of an error.
    """

    events: list[bytes] = field(default_factory=list)
    links: list[bytes] = field(default_factory=list)
    dropped: list[int] = field(default_factory=lambda: [0, 0, 0])
    status: int = 0
    status_message: str | None = None

    def encoded(self) -> bytes:
        """Encode the fields that follow a span's attributes in a line."""
        parts = []
        if self.events:
            parts.append(b',"events":[%b]' % b",".join(self.events))
        if self.links:
            parts.append(b',"links":[%b]' % b",".join(self.links))
        if any(self.dropped):
            counts = b',"droppedAttributesCount":%d,"droppedEventsCount":%d,"droppedLinksCount":%d'
            parts.append(counts % tuple(self.dropped))
        if self.status:
            message = b',"message":%b' % json_string(self.status_message) if self.status_message else b""
            parts.append(b',"status":{"code":%d%b}' % (self.status, message))
        return b"".join(parts)
