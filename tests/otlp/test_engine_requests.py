"""Find the model call of an engine's request, in the forms in which real programs record both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1 import trace_pb2

from otel_rollout.base import semconv
from otel_rollout.otlp import engine_requests, model_calls
from otel_rollout.otlp.engine_requests import Ambiguous, Call, Request
from otel_rollout.otlp.json_span import spans_of_json
from otel_rollout.otlp.reader import attributes_of
from tests.engine_lines import MS, call_line, engine_lines, fields_of, lines_of_engine_span
from tests.spool_reader import ids_to_base64, parse_line

FOREIGN = Path(__file__).parent / "foreign"
REQUESTS = json.loads((Path(__file__).parents[1] / "vllm" / "requests.json").read_text())
OF_OTHER_ENGINES = {"openinference_anthropic.jsonl"}
"""Recordings of calls of an API that vLLM does not name requests for."""
OF_SOME_CALLS = {
    "openinference_langchain.jsonl",
    "openinference_litellm.jsonl",
    "openllmetry_langchain.jsonl",
    "openllmetry_langchain_older.jsonl",
}
"""Recordings of libraries that record no id of streamed replies, or only the reply's text."""


def engine_span(fields: dict[str, Any]) -> trace_pb2.Span:
    """Return a recorded span of vLLM as a message."""
    span = {name: value for name, value in fields.items() if name not in ("scope", "problem")}
    holder = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    return ParseDict(ids_to_base64(holder)["resourceSpans"][0]["scopeSpans"][0]["spans"][0], trace_pb2.Span())


@pytest.mark.parametrize("name", REQUESTS)
def test_spans_of_vllm_are_joined_by_the_ids_in_its_replies(name: str) -> None:
    """For each route: all of a request's spans lie within the call, whose reply has their id."""
    recorded = REQUESTS[name]
    (reply_id,) = recorded["ids"]
    begin, end = recorded["times"]
    expected = {"chat, n = 3": 3, "completion of two prompts": 2}.get(name, 1)
    assert len(recorded["spans"]) == expected
    for fields in recorded["spans"]:
        line, *phases = lines_of_engine_span(engine_span(fields))
        assert engine_requests.is_without_call(line)
        assert [engine_requests.is_phase(phase) for phase in phases] == [True] * 3
        request = engine_requests.request_in(line)
        assert request is not None
        assert reply_id in engine_requests.call_ids_of(request.id)
        call = Call("1" * 32, "2" * 16, begin, end, b"")
        assert engine_requests.call_of(request, [call]) is call


def test_model_calls_of_every_library_have_the_reply_id() -> None:
    """Attribute or output: the id is found on at least one span of each model call."""
    for path in sorted(FOREIGN.glob("*.jsonl")):
        if path.name in OF_OTHER_ENGINES:
            continue
        found: set[str] = set()
        calls = 0
        for line in path.read_bytes().splitlines(keepends=True):
            ids, _ = engine_requests.calls_in(line)
            found |= ids
            (span,) = spans_of_json(orjson.loads(line))
            attributes = attributes_of(span.fields)
            is_answered = bool(model_calls.read_call(attributes).counts)
            calls += is_answered and model_calls.kind_of(attributes) == semconv.KIND_LLM
        assert found, path.name
        assert len(found) >= calls or path.name in OF_SOME_CALLS, path.name


@pytest.mark.parametrize("by", [semconv.GEN_AI_RESPONSE_ID, semconv.GEN_AI_REQUEST_ID, semconv.OUTPUT_VALUE])
def test_call_is_known_by_attribute_or_output(by: str) -> None:
    """Its ids, times and identity are read, whichever attribute has the request's id."""
    ids, call = engine_requests.calls_in(call_line(5, "chatcmpl-1", trace=7, by=by))
    assert ids == {"chatcmpl-1"}
    assert call is not None
    assert (call.trace_id, call.span_id) == (f"{7:032x}", f"{5:016x}")
    assert b'"rollout.sample_index"' in call.identity


@pytest.mark.parametrize(("kind", "is_call"), [("LLM", True), ("", True), ("TOOL", False), ("AGENT", False)])
def test_output_of_a_tool_or_agent_makes_no_model_call(kind: str, is_call: bool) -> None:
    """A tool may return a model's reply, and an agent ends with one: the id in their output is no call's."""
    line = call_line(5, "chatcmpl-1", by=semconv.OUTPUT_VALUE, kind=kind)
    assert engine_requests.calls_in(line)[0] == ({"chatcmpl-1"} if is_call else set())


def test_engine_span_below_an_unknown_parent_is_without_call() -> None:
    """A span of an unknown trace has no identity; of a trajectory's trace, the receiver knows it."""
    unknown = engine_lines(1, "chatcmpl-1", trace=3, parent=4, is_known=False)[0]
    assert engine_requests.is_without_call(unknown)
    assert engine_requests.has_parent(unknown)
    request = engine_requests.request_in(unknown)
    assert request is not None
    assert request.has_parent


def test_engine_span_with_parent_and_other_spans_are_left_alone() -> None:
    """A span that came with a header is neither without call nor a call; its phases are phases."""
    with_header, *phases = engine_lines(1, "chatcmpl-1", trace=3, parent=4)
    assert not engine_requests.is_without_call(with_header)
    assert engine_requests.calls_in(with_header) == (set(), None)
    assert all(map(engine_requests.is_phase, phases))
    line = call_line(1, "chatcmpl-1")
    assert not engine_requests.is_without_call(line)
    assert not engine_requests.is_phase(line)


def a_call(span: int, begin: int, end: int, trace: int = 1) -> Call:
    return Call(f"{trace:032x}", f"{span:016x}", begin * MS, end * MS, b"")


def a_request(begin: int, end: int) -> Request:
    return Request("f" * 32, "e" * 16, "chatcmpl-1", begin * MS, end * MS)


def test_innermost_of_nested_calls_is_chosen() -> None:
    """A client's span lies in that of a framework; a call of another time has reused the id."""
    outer, inner, later = a_call(1, 0, 100), a_call(2, 10, 90), a_call(3, 101, 200)
    assert engine_requests.call_of(a_request(20, 80), [inner, later, outer]) is inner
    assert engine_requests.call_of(a_request(120, 180), [inner, later, outer]) is later
    assert engine_requests.call_of(a_request(300, 380), [inner, later, outer]) is None


@pytest.mark.parametrize("other", [a_call(2, 10, 90, trace=2), a_call(2, 10, 110)])
def test_calls_that_are_not_nested_are_ambiguous(other: Call) -> None:
    """Two calls at once with one id: of two trajectories, or of one."""
    with pytest.raises(Ambiguous):
        engine_requests.call_of(a_request(20, 80), [a_call(1, 0, 100), other])


TIMES = st.integers(0, 60)


@given(
    st.lists(st.builds(a_call, st.integers(1, 9), TIMES, TIMES, st.integers(1, 2)), max_size=6),
    st.builds(a_request, TIMES, TIMES),
    st.randoms(),
)
def test_answer_does_not_depend_on_the_order_of_calls(
    calls: list[Call], request: Request, random: Any
) -> None:
    """A call that is read twice changes nothing either."""

    def answer(given: list[Call]) -> Call | str | None:
        try:
            return engine_requests.call_of(request, given)
        except Ambiguous:
            return "ambiguous"

    known = list({(call.trace_id, call.span_id): call for call in calls}.values())
    shuffled = [*known, *known]
    random.shuffle(shuffled)
    assert answer(shuffled) == answer(known)


def test_placed_lines_are_below_their_call_with_its_identity() -> None:
    """All readers get the same ids; the same span id of another request becomes another id."""
    _, call = engine_requests.calls_in(call_line(5, "chatcmpl-1", trace=7))
    assert call is not None
    found = []
    for times in ((10, 90), (20, 90)):
        lines = engine_lines(1, "chatcmpl-1", times)
        request = engine_requests.request_in(lines[0])
        assert request is not None
        placement = engine_requests.placement_of(request, call)
        placed = [engine_requests.placed(line, placement) for line in lines]
        assert placed == [engine_requests.placed(line, placement) for line in lines]
        for line in placed:
            parse_line(line)
        engine, *phases = map(fields_of, placed)
        assert (engine["trace"], engine["parent"]) == (f"{7:032x}", f"{5:016x}")
        assert {phase["trace"] for phase in phases} == {engine["trace"]}
        assert {phase["parent"] for phase in phases} == {engine["id"]}
        assert [phase["name"] for phase in phases] == ["queue", "prefill", "decode"]
        assert {fields["attributes"]["rollout.sample_index"] for fields in (engine, *phases)} == {"7"}
        found += [fields["id"] for fields in (engine, *phases)]
    assert len(set(found)) == 8


def test_unreadable_lines_raise_nothing() -> None:
    """A damaged line is neither request nor call, and stays as it is."""
    line = engine_lines(1, "chatcmpl-1")[0]
    for damaged in (line[:-20], line.replace(b'"startTimeUnixNano":"', b'"startTimeUnixNano":"x')):
        assert engine_requests.request_in(damaged) is None
        assert engine_requests.calls_in(damaged.replace(b"llm_request", b"chat")) == (set(), None)
    placement = engine_requests.Placement("1" * 32, "2" * 16, "3" * 16, "")
    assert engine_requests.placed(line[:-20], placement) == line[:-20]
    assert engine_requests.engine_span_of(b"{}") == ("", "")
