"""The reader decodes recorded lines to the SDK's spans, field by field."""

import contextlib
import json
import sys

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import INVALID_SPAN_CONTEXT, Link, SpanContext, SpanKind, StatusCode, TraceFlags

from otel_rollout.otlp import scan, writer
from otel_rollout.otlp.json_line import TraceLine, UnreadableLineError, as_recorded
from otel_rollout.record import runtime
from otel_rollout.spool.layout import segments
from tests.sdk_spans import spans_of


def lines_of_this_process(tmp_path):
    active = runtime.current()
    assert active.writer.flush(10)
    (node_dir,) = {path.parent for path in (tmp_path / "spool").rglob("*.jsonl")}
    return [
        line for name in segments(node_dir) for line in (node_dir / name.file).read_bytes().splitlines(True)
    ]


def test_recorded_span_is_decoded_with_every_field(tracing, tmp_path):
    """Every field of span and resource is equal."""
    tracer = runtime.current().tracer
    with tracer.start_as_current_span("parent") as parent:
        span = tracer.start_span(
            "child",
            kind=SpanKind.CLIENT,
            attributes={"s": "ü", "i": 2**62, "f": 0.1, "b": True, "l": ["a", "b"], "raw": b"\x00"},
            links=[Link(SpanContext(5, 6, True, TraceFlags(1)), {"why": "x"})],
            start_time=1,
        )
        span.add_event("event", {"n": 1}, timestamp=2)
        span.set_status(StatusCode.ERROR, "bad")
        span.end(end_time=3)
    child, _ = (spans_of(line)[0] for line in lines_of_this_process(tmp_path))
    assert child.context.span_id == span.get_span_context().span_id
    assert child.parent.span_id == parent.get_span_context().span_id
    assert not child.parent.is_remote
    assert (child.start_time, child.end_time, child.kind) == (1, 3, SpanKind.CLIENT)
    assert child.attributes == {"s": "ü", "i": 2**62, "f": 0.1, "b": True, "l": ["a", "b"], "raw": b"\x00"}
    assert (child.events[0].name, child.events[0].timestamp, child.events[0].attributes) == (
        "event",
        2,
        {"n": 1},
    )
    assert child.links[0].context.is_remote
    assert (child.links[0].context.trace_id, child.links[0].attributes) == (5, {"why": "x"})
    assert (child.status.status_code, child.status.description) == (StatusCode.ERROR, "bad")
    assert child.resource.attributes["service.name"] == "project"
    assert child.instrumentation_scope.name == "otel_rollout"


@pytest.mark.parametrize(
    "line", [b"", b"nonsense", b"[]", b"{}", b'{"resourceSpans":[{"scopeSpans":[{"spans":[{}]}]}]}', b"1"]
)
def test_line_without_trace_data_raises_one_error(line):
    """Any other content of a file raises UnreadableLineError."""
    with pytest.raises(UnreadableLineError):
        spans_of(line)


@given(st.binary(max_size=200))
def test_random_bytes_raise_one_error(garbage):
    """Random bytes raise UnreadableLineError, and nothing else."""
    with pytest.raises(UnreadableLineError):
        spans_of(garbage)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    where=st.sampled_from(["traceId", "spanId", "kind", "status", "attributes", "events", "links", "flags"]),
    what=json_values,
)
def test_field_with_a_foreign_value_raises_one_error_or_none(where, what):
    """The span is decoded, or its line raises UnreadableLineError."""
    span = {
        "traceId": "0" * 31 + "1",
        "spanId": "0" * 15 + "1",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        where: what,
    }
    try:
        line = orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        return
    with contextlib.suppress(UnreadableLineError):
        spans_of(line)


def line_with(**changed):
    span = {
        "traceId": "0" * 31 + "1",
        "spanId": "0" * 15 + "1",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        **changed,
    }
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


def attribute(value):
    return [{"key": "k", "value": value}]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("startTimeUnixNano", time) for time in (0, 2**64 - 1)),
        *(("endTimeUnixNano", time) for time in (0, 2**64 - 1)),
        *(("flags", flags) for flags in (0, 2**32 - 1)),
        *(("kind", kind) for kind in (0, 2**31 - 1)),
        *(("status", {"code": code}) for code in (0, 2**31 - 1)),
        *(("attributes", attribute({"intValue": str(number)})) for number in (-(2**63), 2**63 - 1)),
        ("attributes", attribute({"intValue": 3.0})),
        ("links", [{"traceId": "0" * 32, "spanId": "0" * 16, "flags": 2**32 - 1}]),
    ],
)
def test_integer_at_the_limits_of_its_field_is_decoded(field, value):
    """The limits are those of the field's type in OTLP."""
    (span,) = spans_of(line_with(**{field: value}))
    assert span.context.is_valid


@pytest.mark.parametrize(
    "field", ["kind", "flags", "attributes", "events", "links", "status", "name", "parentSpanId"]
)
def test_null_is_the_default_of_a_field(field):
    """As protobuf's JSON mapping says, of a field of a span and of an event."""
    (span,) = spans_of(line_with(**{field: None}))
    assert span.context.is_valid
    (span,) = spans_of(line_with(events=[{"name": None, "timeUnixNano": None, "attributes": None}]))
    assert span.events[0].timestamp == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("startTimeUnixNano", time) for time in (-1, 2**64, 1.5, True)),
        *(("endTimeUnixNano", time) for time in (-1, 2**64)),
        *(("flags", flags) for flags in (-1, 2**32)),
        *(("kind", kind) for kind in (-1, 2**31)),
        *(("status", {"code": code}) for code in (-1, 2**31)),
        *(("attributes", attribute({"intValue": str(number)})) for number in (-(2**63) - 1, 2**63)),
        ("links", [{"traceId": "0" * 32, "spanId": "0" * 16, "flags": 2**32}]),
        ("spanId", "0" * 16),
        ("traceId", "0" * 32),
    ],
)
def test_integer_beyond_the_limits_of_its_field_raises_one_error(field, value):
    """A value that OTLP cannot hold makes the line unreadable."""
    with pytest.raises(UnreadableLineError):
        spans_of(line_with(**{field: value}))


@pytest.mark.parametrize("container", ["arrayValue", "kvlistValue"])
def test_value_is_decoded_down_to_the_deepest_level_and_cut_below(container):
    """The 24th level inside an attribute is decoded; the 25th is replaced by a note."""
    for levels, is_whole in ((24, True), (25, False)):
        value = {"stringValue": "innermost"}
        for _ in range(levels):
            entry = {"key": "k", "value": value} if container == "kvlistValue" else value
            value = {container: {"values": [entry]}}
        (span,) = spans_of(line_with(attributes=attribute(value)))
        assert ("innermost" in str(span.attributes)) is is_whole


def test_lines_of_a_process_share_their_resource(tracing, tmp_path):
    """The resource and the scope are decoded once; those of another line are its own."""
    for _ in range(2):
        with runtime.current().tracer.start_as_current_span("s"):
            pass
    lines = lines_of_this_process(tmp_path)
    first, second = (spans_of(line)[0] for line in lines)
    (other,) = spans_of(lines[0].replace(b'"project"', b'"another"', 1))
    assert first.resource is second.resource
    assert first.instrumentation_scope is second.instrumentation_scope
    assert (first.resource.attributes["service.name"], other.resource.attributes["service.name"]) == (
        "project",
        "another",
    )


def test_resource_nested_more_deeply_than_json_is_written_is_decoded():
    """orjson reads 1024 levels and writes 254; levels below the 24th are replaced by a note."""
    value = b'{"arrayValue":{"values":[' * 200 + b'{"stringValue":"x"}' + b"]}}" * 200
    resource = b'{"attributes":[{"key":"deep","value":%b}]}' % value
    line = b'{"resourceSpans":[{"resource":%b,"scopeSpans":[{"spans":[%b]}]}]}'
    span = b'{"traceId":"%032x","spanId":"%016x","startTimeUnixNano":"1","endTimeUnixNano":"2"}' % (1, 2)
    (decoded,) = spans_of(line % (resource, span))
    assert "nested too deeply" in str(decoded.resource.attributes["deep"])


def test_link_without_ids_is_decoded(tracing, tmp_path):
    """OpenTelemetry records such links for their attributes."""
    with runtime.current().tracer.start_as_current_span("s") as span:
        span.add_link(INVALID_SPAN_CONTEXT, {"why": "x"})
    (line,) = lines_of_this_process(tmp_path)
    (link,) = spans_of(line)[0].links
    assert (link.context.is_valid, link.attributes) == (False, {"why": "x"})


def test_fields_of_newer_versions_are_ignored():
    """The fields that we know are decoded."""
    line = (
        b'{"resourceSpans":[{"new":1,"resource":{"attributes":[]},"scopeSpans":[{"spans":[{"traceId":"01",'
        b'"spanId":"02","name":"n","startTimeUnixNano":"1","endTimeUnixNano":"2","novel":[1],"attributes":'
        b'[{"key":"k","value":{"newKind":1}}]}]}]}]}'
    )
    (span,) = spans_of(line)
    assert (span.name, span.attributes) == ("n", {"k": None})


@given(
    step=st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    validate=st.none() | st.booleans(),
    text=st.text() | st.just('{"key":"rollout.step","value":{"intValue":"9"}}'),
)
def test_scanned_step_is_the_decoded_step(step, validate, text):
    """The step is right whatever step, validation flag and text a line holds."""
    identity = {"rollout.step": step, "rollout.validate": validate}
    attributes = {"input.value": text} | {key: value for key, value in identity.items() if value is not None}
    pieces = writer.line(
        writer.scope_head("scope", None, None, None),
        *(writer.head_below(b"1" * 32, b"", 1), b"2" * 16, b'"name"', 1, 1, 2),
        (writer.attribute_list(attributes),),
    )
    line = b"".join((writer.resource_head({"service.name": text}), *pieces))
    assert scan.step_of(line) == scan.parsed_step_of(line)


def read_with_interruption(line: TraceLine, number: int) -> tuple[bytes, list[ReadableSpan], int]:
    """Read a line, and let another reader in before instruction ``number``.

    Return the bytes, the spans, and the number of instructions.
    """
    properties = {found.fget.__code__ for found in (TraceLine.encoded, TraceLine.spans)}
    instructions = 0

    def interrupt(frame, event, argument):
        nonlocal instructions
        frame.f_trace_opcodes = True
        instructions += event == "opcode"
        if event == "opcode" and instructions == number:
            assert line.encoded
            assert line.spans
        return interrupt

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: interrupt if frame.f_code in properties else None)
    try:
        return line.encoded, line.spans, instructions
    finally:
        sys.settrace(before)


def test_line_shared_by_exporters_is_whole_wherever_their_threads_switch():
    """Another thread may read the line's bytes and spans between any two instructions."""
    span = {"traceId": "1" * 32, "spanId": "2" * 16, "name": "s"}
    span |= {"startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    parsed = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    number = instructions = 0
    while number <= instructions:
        encoded, spans, instructions = read_with_interruption(TraceLine(parsed=parsed), number)
        assert orjson.loads(encoded) == parsed
        assert [found.name for found in spans] == ["s"]
        number += 1
    assert number > 20


@pytest.mark.parametrize(
    "line", [b'{"resourceSpans": ' + b"[" * 500 + b"]" * 500 + b"}", b'{"resourceSpans": ']
)
def test_line_of_another_program_that_has_no_form_of_ours_stays_as_it_is(line: bytes) -> None:
    """It is too deep to be written again, or it is no JSON: whoever decodes it says what is wrong."""
    assert as_recorded(line) == line
