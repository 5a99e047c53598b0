"""The messages of a body are counted without decoding it."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rollout.record.receiver.body import has_more_messages
from tests.receiver.support import message, request, span

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=10,
)


def any_value(value: Any) -> dict[str, Any]:
    """Return the fields of an ``AnyValue``."""
    if isinstance(value, list):
        return {"array_value": {"values": [any_value(entry) for entry in value]}}
    names = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}
    return {} if value is None else {names.get(type(value), "bytes_value"): value}


def decoded_messages(decoded: Message) -> int:
    """Count the messages in a decoded one."""
    found = 0
    for field, value in decoded.ListFields():
        if field.message_type is not None:
            inner = value if field.is_repeated else [value]
            found += sum(1 + decoded_messages(entry) for entry in inner)
    return found


@given(st.lists(st.dictionaries(st.text(), values, max_size=5), max_size=5))
def test_count_is_that_of_the_decoded_messages(spans: list[dict[str, Any]]) -> None:
    """Whatever the values, the limit is exact."""
    attributes = [[{"key": key, "value": any_value(v)} for key, v in given_.items()] for given_ in spans]
    content = request([span(n, attributes=found) for n, found in enumerate(attributes, 1)])
    number = decoded_messages(ExportTraceServiceRequest.FromString(content))
    assert not has_more_messages(content, number)
    assert has_more_messages(content, number - 1)


@given(
    st.binary(max_size=60).flatmap(
        lambda tail: st.sampled_from([tail, message(1, tail), message(1, message(2, tail))])
    )
)
def test_count_of_any_bytes_is_no_less_than_that_of_the_decoded_messages(content: bytes) -> None:
    """No body is decoded into more messages than were counted; damaged ones end the count."""
    try:
        number = decoded_messages(ExportTraceServiceRequest.FromString(content))
    except DecodeError:
        has_more_messages(content, 10)
    else:
        assert number == 0 or has_more_messages(content, number - 1)
