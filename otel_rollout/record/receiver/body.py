"""Decode the body of a request: its compression within a limit, then protobuf or JSON."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rollout.otlp import received_json, received_protobuf
from otel_rollout.otlp.received import ReceivedScope, RedactResource

MAX_BYTES: Final = 32 << 20
"""Maximum bytes of a body, as it is sent and after decompression."""
MAX_MESSAGES: Final = 1 << 20
"""Maximum number of spans, attributes, values, … of a body. Each takes as few as two bytes in the body, but
some hundred bytes when it is decoded."""
_SMALL_BYTES: Final = 2 * MAX_MESSAGES
"""Bytes of a body that cannot have more than ``MAX_MESSAGES``, because each takes at least two bytes."""
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a character in JSON. JavaScript writes one where it has cut a text within a character."""
PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
ENCODINGS: Final = {"": 0, "identity": 0, "gzip": 31, "x-gzip": 31, "deflate": 15}
"""Content encoding → window bits of zlib; 0 for none."""


class RefusedRequestError(Exception):
    """Raised for a request that is refused.

    Args:
        status: the HTTP status.
        sentence: says what is wrong.
        headers: further headers of the answer.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers or {}


class Body(NamedTuple):
    """A body, and what its headers say about it."""

    content: bytes
    type_: str
    encoding: str

    def scopes(self, redact: RedactResource | None) -> Iterator[ReceivedScope]:
        """Yield the scopes of the request.

        Raises:
            RefusedRequestError: the body is no request of OTLP, or is too large.
        """
        bits = ENCODINGS[self.encoding]
        content = _decompressed(self.content, bits) if bits else self.content
        if len(content) > _SMALL_BYTES and self._has_many_messages(content):
            raise RefusedRequestError(413, f"The body has more than {MAX_MESSAGES} messages or values.")
        if self.type_ == PROTOBUF:
            return received_protobuf.scopes_of(_parsed_protobuf(content), redact)
        return iter(_scopes_of_json(content, redact))

    def _has_many_messages(self, content: bytes) -> bool:
        if self.type_ == PROTOBUF:
            return has_more_messages(content, MAX_MESSAGES)
        return content.count(b"{") + content.count(b"[") > MAX_MESSAGES


def _parsed_protobuf(content: bytes) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(content)
    except DecodeError:
        raise RefusedRequestError(400, "The body is no ExportTraceServiceRequest in protobuf.") from None
    return request


def _scopes_of_json(content: bytes, redact: RedactResource | None) -> list[ReceivedScope]:
    try:
        parsed = _parsed_json(content)
    except (ValueError, RecursionError):
        raise RefusedRequestError(400, "The body is no JSON.") from None
    try:
        return list(received_json.scopes_of(parsed, redact))
    except ValueError as error:
        raise RefusedRequestError(400, f"The body is no request of OTLP in JSON: {error}.") from None


def _parsed_json(content: bytes) -> Any:
    """Parse JSON; lone surrogates become question marks.

    Raises:
        ValueError: the content is no JSON.
        RecursionError: the content is nested too deeply.
    """
    try:
        return orjson.loads(content)
    except ValueError:
        if not _SURROGATE.search(content):
            raise
    text = json.dumps(json.loads(content), ensure_ascii=False)
    return orjson.loads(text.encode("utf-8", "replace"))


def _decompressed(content: bytes, bits: int) -> bytes:
    """Decompress a body; several members may follow each other, as gzip allows."""
    parts: list[bytes] = []
    size = 0
    while content:
        stream = zlib.decompressobj(bits)
        try:
            parts.append(stream.decompress(content, MAX_BYTES - size + 1))
        except zlib.error:
            raise RefusedRequestError(
                400, "The body is not compressed as its Content-Encoding says."
            ) from None
        size += len(parts[-1])
        if size > MAX_BYTES:
            raise RefusedRequestError(413, f"The body has more than {MAX_BYTES} bytes after decompression.")
        if not stream.eof:
            raise RefusedRequestError(400, "The compressed body is incomplete.")
        content = stream.unused_data
    return b"".join(parts)


# --- how many messages a body in protobuf has --------------------------------------------------------------


_Fields = dict[int, Any]
"""Number of each field that holds messages → the fields of these messages."""
_VARINT, _LENGTH, _GROUP = 0, 2, 3
"""Wire types of protobuf."""
_FIXED_BYTES: Final = {1: 8, 5: 4}
"""Wire type → bytes of its values."""


def _fields_of(descriptor: Any, known: dict[str, _Fields]) -> _Fields:
    """Return the fields of a type that hold messages, from the schema; a type may contain itself."""
    found = known.get(descriptor.full_name)
    if found is None:
        found = known[descriptor.full_name] = {}
        for field in descriptor.fields:
            if field.message_type is not None:
                found[field.number] = _fields_of(field.message_type, known)
    return found


_REQUEST: Final[_Fields] = _fields_of(ExportTraceServiceRequest.DESCRIPTOR, {})


def has_more_messages(content: bytes, limit: int) -> bool:
    """Return whether a body has more than ``limit`` messages, at any depth.

    Of a damaged body, the part before the damage counts: protobuf decodes no more of it either.
    """
    position, messages = 0, 0
    end, fields = len(content), _REQUEST
    around: list[tuple[int, _Fields]] = []
    try:
        while messages <= limit:
            while position >= end:
                if not around:
                    return False
                end, fields = around.pop()
            tag, position = _varint(content, position)
            wire_type = tag & 7
            if wire_type == _LENGTH:
                length, position = _varint(content, position)
                inner = fields.get(tag >> 3)
                if inner is None:
                    position += length
                else:
                    messages += 1
                    around.append((end, fields))
                    end, fields = position + length, inner
            elif wire_type == _VARINT:
                _, position = _varint(content, position)
            elif wire_type == _GROUP:  # of an unknown field
                messages += 1
            else:
                position += _FIXED_BYTES.get(wire_type, 0)
    except IndexError:  # the body ends within a field
        return False
    return True


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    value = content[position]
    if value < 0x80:  # nearly always
        return value, position + 1
    value, shift = value & 0x7F, 7
    while True:
        position += 1
        byte = content[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
