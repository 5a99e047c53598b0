"""Requests to the receiver's application: what is taken, what is refused, and with which answer."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from google.rpc.status_pb2 import Status
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_rollout.record.receiver import app, body, intake
from otel_rollout.record.receiver.intake import Policy
from otel_rollout.redaction.secret_finder import redact_secrets
from tests.receiver.support import (
    HEADERS,
    JSON_HEADERS,
    in_process,
    json_request,
    json_span,
    message,
    request,
    span,
)
from tests.waits import set_waits

CASES = [
    ("another path", {"path": "/v1/logs"}, 404, "This server receives traces only, at /v1/traces."),
    ("GET", {"method": "GET"}, 405, "Spans are sent by POST."),
    ("no token", {"headers": {"authorization": ""}}, 401, "lacks the receiver's token"),
    ("a wrong token", {"headers": {"authorization": "Bearer the-tokeN"}}, 401, "lacks the receiver's token"),
    ("basic", {"headers": {"authorization": "Basic the-token"}}, 401, "lacks the receiver's token"),
    ("another host", {"headers": {"host": "evil.example:4318"}}, 403, "names another server"),
    ("a form", {"headers": {"content-type": "text/plain"}}, 415, "neither application/x-protobuf nor"),
    ("no type", {"headers": {"content-type": ""}}, 415, "neither application/x-protobuf nor"),
    ("brotli", {"headers": {"content-encoding": "br"}}, 415, "neither gzip nor deflate"),
    ("no protobuf", {"body": b"\xff\xff\xff"}, 400, "no ExportTraceServiceRequest"),
    ("half a body", {"body": request([span()])[:-5]}, 400, "no ExportTraceServiceRequest"),
    ("no gzip", {"headers": {"content-encoding": "gzip"}}, 400, "not compressed as its Content-Encoding"),
    (
        "half a gzip",
        {"headers": {"content-encoding": "gzip"}, "body": gzip.compress(request([span()] * 99))[:-9]},
        400,
        "incomplete",
    ),
    ("no JSON", {"headers": {"content-type": "application/json"}, "body": b"{"}, 400, "The body is no JSON."),
    ("a list", {"headers": {"content-type": "application/json"}, "body": b"[]"}, 400, "no request of OTLP"),
    (
        "spans that are text",
        {
            "headers": {"content-type": "application/json"},
            "body": b'{"resourceSpans":[{"scopeSpans":[{"spans":"x"}]}]}',
        },
        400,
        "no request of OTLP",
    ),
    (
        "a length beyond the limit",
        {"headers": {"content-length": str(body.MAX_BYTES + 1)}},
        413,
        f"more than {body.MAX_BYTES} bytes",
    ),
]


@pytest.mark.parametrize(("given_", "status", "sentence"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
async def test_wrong_request_is_refused_with_one_sentence_and_counted(
    tmp_path: Path, given_: dict[str, Any], status: int, sentence: str
) -> None:
    """Each refusal has the status that HTTP has for it; nothing is recorded."""
    headers = {**HEADERS, **given_.pop("headers", {})}
    with in_process(tmp_path) as receiver:
        answer = await receiver.post(given_.pop("body", request([span()])), headers, **given_)
        assert answer.status_code == status
        found = answer.text
        if answer.headers["content-type"] == "application/x-protobuf":
            found = Status.FromString(answer.content).message
        elif answer.headers["content-type"] == "application/json":
            found = answer.json()["message"]
        assert sentence in found
        assert found.strip().endswith(".")
        assert "the-token" not in found
        assert receiver.counts.refused_requests == {str(status): 1}
        assert not receiver.recorded()
    if status == 405:
        assert answer.headers["allow"] == "POST"
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("encoding", ["", "gzip", "deflate"])
@pytest.mark.parametrize("is_json", [False, True])
async def test_span_is_recorded_from_either_encoding(tmp_path: Path, encoding: str, is_json: bool) -> None:
    """Protobuf and JSON, compressed or not, give the same span."""
    content = orjson.dumps(json_request(json_span(7))) if is_json else request([span(7)])
    compress = {"": lambda data: data, "gzip": gzip.compress, "deflate": zlib.compress}[encoding]
    headers = {**(JSON_HEADERS if is_json else HEADERS), "content-encoding": encoding}
    with in_process(tmp_path) as receiver:
        answer = await receiver.post(compress(content), headers)
        assert answer.status_code == 200
        if is_json:
            assert answer.json() == {}
        else:
            response = ExportTraceServiceResponse.FromString(answer.content)
            assert not response.HasField("partial_success")
        (found,) = receiver.recorded()
    assert (found.name, found.span.trace_id, found.span.span_id) == ("span 7", b"\1" * 16, b"\0" * 7 + b"\7")
    assert found.resource["service.name"] == ("curl" if is_json else "an agent")
    assert found.resource["rollout.run.id"] == "the-run"


async def test_wrong_spans_are_refused_and_the_rest_is_recorded(tmp_path: Path) -> None:
    """The answer tells how many spans were refused, and why the first one was."""
    wrong = [
        span(2, trace_id=b""),
        span(3, span_id=b"\0" * 8),
        span(4, parent_span_id=b"123"),
        span(5, end_time_unix_nano=0),
        span(6, links=[{"trace_id": b"1", "span_id": b"2"}]),
        span(8, parent_span_id=(8).to_bytes(8, "big")),
        span(9, end_time_unix_nano=5),
    ]
    with in_process(tmp_path) as receiver:
        answer = await receiver.post(request([span(1), *wrong, span(7)]))
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        assert (answer.status_code, partial.rejected_spans) == (200, 7)
        assert partial.error_message == "7 spans were refused; the first one has no valid trace id."
        assert [found.name for found in receiver.recorded()] == ["span 1", "span 7"]
        assert sum(receiver.counts.refused_spans.values()) == 7
        assert receiver.writer.counts().started == receiver.writer.counts().recorded == 2


async def test_wrong_span_in_json_is_refused_alone(tmp_path: Path) -> None:
    """A field of a wrong type costs its own span."""
    spans = (json_span(1), json_span(2, name=5), json_span(3, attributes=7), json_span(4, kind="x"))
    with in_process(tmp_path) as receiver:
        answer = await receiver.post(orjson.dumps(json_request(*spans)), JSON_HEADERS)
        assert answer.status_code == 200
        partial = answer.json()["partialSuccess"]
        assert partial["rejectedSpans"] == "3"
        assert [found.name for found in receiver.recorded()] == ["span 1"]


@pytest.mark.parametrize("value", [{"doubleValue": "1e400"}, {"bytesValue": "no base64!"}])
async def test_value_that_protobuf_has_not_is_refused(tmp_path: Path, value: dict[str, str]) -> None:
    """A span's costs the span; one of the resource, the request."""
    attributes = [{"key": "a", "value": value}]
    wrong = json_request(json_span(3))
    wrong["resourceSpans"][0]["resource"] = {"attributes": attributes}
    with in_process(tmp_path) as receiver:
        spans = (json_span(1), json_span(2, attributes=attributes))
        answer = await receiver.post(orjson.dumps(json_request(*spans)), JSON_HEADERS)
        assert answer.json()["partialSuccess"]["rejectedSpans"] == "1"
        assert (await receiver.post(orjson.dumps(wrong), JSON_HEADERS)).status_code == 400
        assert [found.name for found in receiver.recorded()] == ["span 1"]


async def test_zip_bomb_is_refused_without_its_memory(tmp_path: Path) -> None:
    """A gigabyte in a megabyte ends at the limit."""
    bomb = gzip.compress(bytes(1 << 20)) * 1000
    with in_process(tmp_path) as receiver:
        answer = await receiver.post(bomb, {**HEADERS, "content-encoding": "gzip"})
        assert answer.status_code == 413
        assert "after decompression" in Status.FromString(answer.content).message


MANY = body.MAX_MESSAGES + 1
SPANS = {"resourceSpans": [{"scopeSpans": [{"spans": "@"}]}]}
VALUES = {
    "resourceSpans": [
        {"scopeSpans": [{"spans": [{"attributes": [{"value": {"arrayValue": {"values": "@"}}}]}]}]}
    ]
}
BOMBS = {
    "resources": (HEADERS, message(1) * MANY),
    "spans": (HEADERS, message(1, message(2, message(2) * MANY))),
    "attributes": (HEADERS, message(1, message(2, message(2, message(9) * MANY)))),
    "events": (HEADERS, message(1, message(2, message(2, message(11) * MANY)))),
    "values": (HEADERS, message(1, message(1, message(1, message(2, message(5, message(1) * MANY)))))),
    "groups": (HEADERS, b"\x7b" * MANY * 2),
    "spans in JSON": (JSON_HEADERS, json.dumps(SPANS).replace('"@"', f"[{'{},' * MANY}{{}}]").encode()),
    "values in JSON": (JSON_HEADERS, json.dumps(VALUES).replace('"@"', f"[{'{},' * MANY}{{}}]").encode()),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_body_of_countless_small_messages_is_refused_before_it_is_decoded(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kilobytes, compressed, that would be gigabytes of decoded spans are answered with 413."""

    def decode(_: bytes) -> None:
        raise AssertionError("it is decoded")

    monkeypatch.setattr(body, "_parsed_protobuf", decode)
    monkeypatch.setattr(body, "_parsed_json", decode)
    headers, content = BOMBS[name]
    with in_process(tmp_path) as receiver:
        answer = await receiver.post(gzip.compress(content, 1), {**headers, "content-encoding": "gzip"})
    assert answer.status_code == 413
    assert b"messages or values" in answer.content


async def test_other_requests_get_their_turn_while_wrong_spans_are_refused(tmp_path: Path) -> None:
    """A request of many wrong spans does not hold up the receiver."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with in_process(tmp_path) as receiver:
        counting = asyncio.create_task(count_turns())
        answer = await receiver.post(message(1, message(2, message(2) * 20_000)))
        counting.cancel()
    assert ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans == 20_000
    assert turns > 100


async def test_text_that_is_cut_within_a_character_costs_that_character(tmp_path: Path) -> None:
    """JavaScript writes half of a character as JSON allows; the spans of its request are recorded."""
    cut = json_span(1, name="cut \ud83d", attributes=[{"key": "a", "value": {"stringValue": "\ude00!"}}])
    whole = json_span(2, name="\U0001f600 \\ud83d")
    with in_process(tmp_path) as receiver:
        content = json.dumps(json_request(cut, whole)).encode()
        assert b"\\ud83d" in content
        assert (await receiver.post(content, JSON_HEADERS)).json() == {}
        first, second = receiver.recorded()
    assert (first.name, first.attributes["a"]) == ("cut ?", "?!")
    assert second.name == "\U0001f600 \\ud83d"


@pytest.mark.parametrize("is_json", [False, True])
async def test_last_one_of_equal_attributes_is_recorded(tmp_path: Path, is_json: bool) -> None:
    """Keys of a recorded span are unique, as OTLP says, whatever was sent."""
    with in_process(tmp_path) as receiver:
        if is_json:
            values = [{"key": "a", "value": {"intValue": str(number)}} for number in (1, 2)]
            content = orjson.dumps(json_request(json_span(1, attributes=values)))
            await receiver.post(content, JSON_HEADERS)
        else:
            entries = [{"key": "a", "value": {"int_value": number}} for number in (1, 2)]
            await receiver.post(request([span(1, attributes=entries)]))
        (found,) = receiver.recorded()
    assert found.attributes["a"] == 2


async def test_body_without_length_is_cut_off_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunked body is refused as soon as it is too large."""
    monkeypatch.setattr(app, "MAX_BYTES", 1000)
    taken = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield bytes(100)

    with in_process(tmp_path) as receiver:
        answer = await receiver.post(parts())
    assert answer.status_code == 413


async def test_requests_beyond_the_queue_are_told_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that floods gets 429 with Retry-After; what was acknowledged is recorded."""
    monkeypatch.setattr(app, "MAX_QUEUED_BYTES", 20_000)
    with in_process(tmp_path) as receiver:
        bodies = [request([span(number * 100 + n) for n in range(1, 60)]) for number in range(1, 30)]
        answers = await asyncio.gather(*map(receiver.post, bodies))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert all(answer.headers["retry-after"] == "1" for answer in refused)
        assert len(receiver.recorded()) == 59 * (29 - len(refused)) > 0
        assert receiver.counts.refused_requests == {"429": len(refused)}
        assert (await receiver.post(request([span(9_999)]))).status_code == 200, "there is room again"


async def test_full_spool_refuses_with_429(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit into the journal is not acknowledged, and nothing is dropped."""
    set_waits(monkeypatch, request_room=0.3)
    monkeypatch.setattr(intake, "JOURNAL_BYTES", 1 << 16)
    with in_process(tmp_path, journal_bytes=1 << 16, spool_limit=1) as receiver:
        answers = [await receiver.post(request([span(n) for n in range(1, 100)])) for _ in range(8)]
        statuses = [answer.status_code for answer in answers]
        assert statuses[0] == 200
        assert statuses[-1] == 429
        assert not any(receiver.writer.counts().drops.values())


async def test_slow_body_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends its body by and by gets 408."""
    set_waits(monkeypatch, request_body=0.2)

    async def parts() -> AsyncIterator[bytes]:
        yield b"\n"
        await asyncio.sleep(5)

    answers = []
    with in_process(tmp_path) as receiver:

        async def send(message: Any) -> None:
            answers.append(message)

        first = [{"type": "http.request", "body": b"x", "more_body": True}]

        async def receive() -> Any:
            if first:
                return first.pop()
            await asyncio.sleep(5)

        headers = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
        scope = {"type": "http", "path": "/v1/traces", "method": "POST", "headers": headers}
        await receiver.application(scope, receive, send)
    assert answers[0]["status"] == 408


async def test_spans_of_this_package_are_not_recorded_twice(tmp_path: Path) -> None:
    """An exporter that leads back to the receiver makes no loop."""
    of_application = request([span(1)], scope="otel_rollout")
    of_forwarder = request([span(2)], resource={"rollout.run.id": "the-run"})
    of_sandbox = request([span(3)], scope="otel_rollout", resource={"rollout.run.id": "another"})
    with in_process(tmp_path) as receiver:
        for content in (of_application, of_forwarder):
            answer = await receiver.post(content)
            partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
            assert "was recorded by otel_rollout already" in partial.error_message
        await receiver.post(of_sandbox)
        (found,) = receiver.recorded()
    assert (found.name, found.resource["rollout.run.id"]) == ("span 3", "the-run")


async def test_foreign_trace_is_refused_if_only_trajectories_are_wanted(tmp_path: Path) -> None:
    """With the setting `trajectories`, a trace of no trajectory is refused and counted."""
    with in_process(tmp_path, Policy("the-run", only_trajectories=True)) as receiver:
        answer = await receiver.post(request([span(1)]))
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        assert partial.rejected_spans == 1
        assert receiver.counts.refused_spans == {"belongs to no trajectory of this machine": 1}
        assert not receiver.recorded()


async def test_head_sampling_decides_once_for_each_foreign_trace(tmp_path: Path) -> None:
    """Spans of a trace that is sampled out are acknowledged, counted and not recorded."""
    asked: list[int] = []

    def decision(trace_id: int, name: str) -> bool:
        asked.append(trace_id)
        return trace_id % 2 == 0

    traces = [bytes(15) + bytes([number]) for number in (1, 2, 1, 2, 2)]
    spans = [span(number, trace_id=trace) for number, trace in enumerate(traces, 1)]
    with in_process(tmp_path, Policy("the-run", decision=decision)) as receiver:
        answer = await receiver.post(request(spans))
        assert answer.content == b""
        assert [found.name for found in receiver.recorded()] == ["span 2", "span 4", "span 5"]
        assert receiver.counts.sampled_out == 2
    assert asked == [1, 2]


async def test_received_spans_are_redacted_before_they_are_written(tmp_path: Path) -> None:
    """A key in an attribute never reaches the disk."""
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ"
    attributes = [{"key": "text", "value": {"string_value": f"key {secret}"}}]
    with in_process(tmp_path, Policy("the-run", redact=redact_secrets)) as receiver:
        await receiver.post(request([span(1, attributes=attributes)]))
        (found,) = receiver.recorded()
    assert found.name == "span 1"
    assert not any(secret.encode() in path.read_bytes() for path in tmp_path.iterdir())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        [
                            "resourceSpans",
                            "scopeSpans",
                            "spans",
                            "resource",
                            "scope",
                            "attributes",
                            "key",
                            "value",
                            "stringValue",
                            "intValue",
                            "traceId",
                            "spanId",
                            "startTimeUnixNano",
                            "endTimeUnixNano",
                            "name",
                            "events",
                            "links",
                            "status",
                        ]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=30,
        ).map(lambda value: json.dumps(value).encode()),
        st.builds(
            lambda position, byte: (
                request([span()])[:position] + bytes([byte]) + request([span()])[position + 1 :]
            ),
            st.integers(0, 80),
            st.integers(0, 255),
        ),
    ),
    type_=st.sampled_from(["application/x-protobuf", "application/json"]),
    encoding=st.sampled_from(["", "gzip", "deflate"]),
)
def test_any_body_gets_an_answer_and_leaves_readable_lines(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, type_: str, encoding: str
) -> None:
    """No body is answered with an error of ours, and each recorded line is OTLP/JSON."""

    async def sent() -> None:
        with in_process(tmp_path_factory.mktemp("spool")) as receiver:
            headers = {**HEADERS, "content-type": type_, "content-encoding": encoding}
            answer = await receiver.post(content, headers)
            assert answer.status_code in (200, 400, 413)
            recorded = receiver.recorded()
            assert len(recorded) == receiver.counts.recorded
            assert (await receiver.post(request([span()]))).status_code == 200

    asyncio.run(sent())
