"""Count the messages inside a body of OTLP in protobuf, before they are decoded.

A message of two bytes, such as an empty span, takes a hundred times as many when it is decoded. So a body of
some megabytes, or of some kilobytes compressed, could take gigabytes.
"""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

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
