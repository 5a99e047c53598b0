"""The writer's lines are valid OTLP/JSON to a parser that shares no code with us."""

import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.otlp import writer
from tests.spool_reader import parse_line, plain_attributes, plain_value


def line(attributes: bytes = b"", trace_state: str = "", **details) -> bytes:
    pieces = writer.line(
        writer.scope_head("scope", "1.0", {"a": 1}, "https://schema"),
        writer.head_below(b"0af7651916cd43dd8448eb211c80319c", b"00f067aa0ba902b7", 259),
        b"b7ad6b7169203331",
        writer.json_string("näme"),
        1,
        1_700_000_000_000_000_001,
        1_700_000_000_000_000_002,
        (b"[", attributes, b"]"),
        writer.Details(**details).encoded() + writer.trace_state(trace_state),
    )
    return b"".join((writer.resource_head({"service.name": "s"}), *pieces))


def parsed(encoded: bytes):
    (resource,) = parse_line(encoded).resource_spans
    (scope,) = resource.scope_spans
    (span,) = scope.spans
    return resource, scope, span


def test_span_is_one_line_with_every_field():
    """Protobuf's own parser reads every field as it was given."""
    encoded = line(
        trace_state="vendor=1",
        status=2,
        status_message="bröken",
        events=[writer.event("e", 7, {"k": "v"})],
        links=[writer.link(1, 2, "s=1", 257, {"l": 1})],
        dropped=[1, 2, 3],
    )
    assert encoded.count(b"\n") == 1
    assert encoded.endswith(b"\n")
    resource, scope, span = parsed(encoded)
    assert plain_attributes(resource.resource.attributes) == {"service.name": "s"}
    assert (scope.scope.name, scope.scope.version, scope.schema_url) == ("scope", "1.0", "https://schema")
    assert (span.trace_id.hex(), span.span_id.hex()) == (
        "0af7651916cd43dd8448eb211c80319c",
        "b7ad6b7169203331",
    )
    assert span.parent_span_id.hex() == "00f067aa0ba902b7"
    assert (span.name, span.kind, span.flags, span.trace_state) == ("näme", 1, 259, "vendor=1")
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (
        1_700_000_000_000_000_001,
        1_700_000_000_000_000_002,
    )
    assert (span.status.code, span.status.message) == (2, "bröken")
    assert (span.dropped_attributes_count, span.dropped_events_count, span.dropped_links_count) == (1, 2, 3)
    assert (span.events[0].name, span.events[0].time_unix_nano) == ("e", 7)
    assert (span.links[0].trace_id.hex(), span.links[0].flags) == (f"{1:032x}", 257)


def test_64_bit_integers_are_strings_and_enums_are_numbers():
    """The JSON follows the protocol's rules, also those that protobuf's parser skips."""
    span = orjson.loads(line(writer.attribute("n", 5)))["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert span["attributes"] == [{"key": "n", "value": {"intValue": "5"}}]
    assert isinstance(span["startTimeUnixNano"], str)
    assert span["kind"] == 1


nested = st.recursive(
    st.text() | st.integers(0, 9), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(nested)
def test_json_inside_a_string_round_trips(value):
    """JSON in a JSON string is equal after it was parsed twice."""
    assert read_back(value) == value


@pytest.mark.parametrize(
    "value",
    [
        list(range(20_000)),
        "prose " * 10_000,
        '"\\\n' * 10_000,
        "prose " * 10_000 + '"\\\n' * 100,
        '"\\\n' * 100 + "prose " * 10_000,
        "é" * 30_000,
    ],
    ids=["numbers", "prose", "escapes", "escapes after prose", "escapes before prose", "other text"],
)
def test_long_json_inside_a_string_round_trips(value):
    """Every way of escaping gives an equal string."""
    assert read_back(value) == value


def read_back(value: object) -> object:
    head = writer.head_of_string("key")
    attribute = orjson.loads(b"".join(writer.attribute_of_json(head, orjson.dumps(value))))
    assert attribute["key"] == "key"
    return orjson.loads(attribute["value"]["stringValue"])


values = st.recursive(
    st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def same(left, right) -> bool:
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return type(left) is type(right) and left == right


@given(st.dictionaries(st.text(), values, max_size=5))
def test_attributes_of_every_type_round_trip(attributes):
    """Text, numbers, bytes, lists and maps are equal and of equal type."""
    encoded = b",".join(writer.attribute(*item) for item in attributes.items())
    span = parsed(line(encoded))[2]
    assert same(attributes, plain_attributes(span.attributes))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2**63, str(2**63)), ("\ud800", "?"), (None, None), (range(2), [0, 1]), (object, str(object))],
)
def test_values_otlp_cannot_hold_become_text(value, expected):
    """Huge integers, lone surrogates and foreign objects do not break a line."""
    span = parsed(line(writer.attribute("v", value)))[2]
    assert plain_value(span.attributes[0].value) == expected
