"""Spans in a line's JSON are read and changed in place."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from otel_rollout.otlp import json_line, sdk, writer
from otel_rollout.otlp.json_line import line_of, request_of, set_resource_text, spans_of_json
from otel_rollout.otlp.json_values import attributes_of
from otel_rollout.otlp.origin import Resource
from otel_rollout.otlp.protobuf import span_without_links
from otel_rollout.otlp.span import Span

VALUES: dict[str, Any] = {"text": "a", "flag": True, "count": 7, "share": 0.5, "names": ["a", "b"]}


def line(scope: str = "otel_rollout", parent_id: bytes = b"", **attributes: Any) -> bytes:
    """Make a line with one span, as recorders write it."""
    pieces = writer.line(
        writer.scope_head(scope, None, None, None),
        writer.head_below(b"1" * 32, parent_id, 1),
        b"2" * 16,
        b'"s"',
        1,
        *(5, 9),
        [writer.attribute_list(attributes)],
        writer.Details(status=2, status_message="broken").encoded(),
    )
    return writer.resource_head({"service.name": "p"}) + b"".join(pieces)


def span_of(encoded: bytes) -> Span:
    (span,) = spans_of_json(orjson.loads(encoded))
    return span


def test_fields_are_those_of_the_recorded_span() -> None:
    """Times are integers; a root span has an empty parent."""
    span = span_of(line())
    assert (span.trace_id, span.span_id, span.parent_id) == ("1" * 32, "2" * 16, "")
    assert (span.start_ns, span.end_ns, span.has_failed) == (5, 9, True)
    assert span_of(line(parent_id=b"3" * 16)).parent_id == "3" * 16


def test_attributes_are_found_by_name() -> None:
    """Only text is text, and a list is no scalar."""
    span = span_of(line(**VALUES))
    assert (span.text("text"), span.text("count"), span.text("none")) == ("a", None, None)
    assert span.attributes == VALUES
    assert span.scalars() == {**VALUES, "names": None}


def test_changed_span_changes_the_line() -> None:
    """Texts, the end and the resource are written where they were read."""
    data = orjson.loads(line(**VALUES))
    (span,) = spans_of_json(data)
    span.set_text("text", "b")
    span.set_end(11)
    set_resource_text(data, "service.name", "q")
    (changed,) = json_line.spans_of(orjson.dumps(data))
    assert changed.attributes == span.attributes == {**VALUES, "text": "b"}
    assert (changed.end_ns, changed.resource.attributes["service.name"]) == (11, "q")
    with pytest.raises(KeyError):
        span.set_text("none", "b")


def test_replaced_attributes_are_appended_in_order() -> None:
    """Kept attributes come first, then renamed ones as recorded, then new ones of every type."""
    span = span_of(line(x=b"\x00", y=1))
    span.replace({"x"}, VALUES, {"x": "x.recorded"})
    for found in (span.attributes, attributes_of(span.fields)):
        assert list(found.items()) == [("y", 1), ("x.recorded", b"\x00"), *VALUES.items()]
    assert span.text("text") == "a"


def test_hidden_text_leaves_names_numbers_and_kept_attributes() -> None:
    """Text of any depth, bytes and the status message are hidden."""
    span = span_of(line(kept="k", deep={"a": ["t", "u", 1, {"b": "t"}]}, bytes=b"\x00", count=1))
    span.hide_text("X", lambda key, text: key == "kept" or text == "u")
    found = attributes_of(span.fields)
    assert found == {"kept": "k", "deep": {"a": ["X", "u", 1, {"b": "X"}]}, "bytes": None, "count": 1}
    assert span.fields["status"] == {"code": 2, "message": "X"}


def test_spans_of_all_scopes_are_read() -> None:
    """A line of another program may have several."""
    ours, other = orjson.loads(line()), orjson.loads(line("other"))
    data = {"resourceSpans": ours["resourceSpans"] + other["resourceSpans"]}
    _, found = spans_of_json(data)
    assert found.fields is other["resourceSpans"][0]["scopeSpans"][0]["spans"][0]


def test_made_spans_are_read_back() -> None:
    """A span without duration, in a line with a resource."""
    resource = Resource({"service.name": "p"})
    made = Span.made(("1" * 32, "2" * 16, "3" * 16), "score", (7, 7), dict(VALUES), resource=resource)
    (span,) = json_line.spans_of(line_of([made]))
    assert (span.name, span.start_ns, span.end_ns) == ("score", 7, 7)
    assert span.attributes == VALUES
    assert (span.parent_id, span.resource.attributes["service.name"]) == ("3" * 16, "p")


def test_lines_are_joined_to_one_request() -> None:
    """Lines of other programs may have spaces; what is no line stays as it is."""
    other = orjson.dumps(orjson.loads(line("other")), option=orjson.OPT_INDENT_2)
    joined = orjson.loads(request_of([line(), other]))
    assert joined["resourceSpans"] == [orjson.loads(each)["resourceSpans"][0] for each in (line(), other)]
    assert request_of([b"broken\n"]) == b'{"resourceSpans":[broken]}'


def test_span_returns_from_the_sdk() -> None:
    """A span of the SDK has every field of ours; an application may give it to our exporters."""
    (span,) = json_line.spans_of(line(parent_id=b"3" * 16, **VALUES, deep={"a": [1]}, raw=b"\x00"))
    (found,) = sdk.spans_of([sdk.readable(span)])
    for name in ("trace_id", "span_id", "parent_id", "name", "kind", "start_ns", "end_ns", "attributes"):
        assert getattr(found, name) == getattr(span, name)
    assert (found.status, found.message, found.is_running) == (2, "broken", False)
    assert found.resource.attributes == span.resource.attributes
    assert found.scope.name == "otel_rollout"
    (running,) = sdk.spans_of([sdk.readable(span.without_end())])
    assert (running.is_running, running.has_failed) == (True, False)


def test_text_of_an_applications_span_is_utf8() -> None:
    """Half a surrogate pair becomes a question mark, in names and values."""
    (span,) = json_line.spans_of(line())
    half = sdk.readable(span.copy(name="\ud800", attributes={"\ud800": ["a\udfff"]}))
    (found,) = sdk.spans_of([half])
    assert (found.name, found.attributes) == ("?", {"?": ["a?"]})


@pytest.mark.parametrize(("name", "number"), [("SPAN_KIND_INTERNAL", 1), ("SPAN_KIND_SERVER", 2), (None, 0)])
def test_kind_of_protobufs_json_is_read_by_its_name(name: str | None, number: int) -> None:
    """MLflow names a span's kind from 3.18 on, and says none before."""
    ids = {"trace_id": base64.b64encode(bytes(15) + b"1"), "span_id": base64.b64encode(bytes(7) + b"2")}
    stored = {**ids, "name": "op", "status": {"code": "STATUS_CODE_ERROR"}}
    span = span_without_links(stored if name is None else {**stored, "kind": name}, {})
    assert (span.complete().kind, span.has_failed) == (number, True)
