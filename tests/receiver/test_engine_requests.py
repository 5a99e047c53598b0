"""Requests of an inference engine: the receiver records their phases below them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import orjson
import pytest

from otel_rollout.base import semconv
from otel_rollout.record.receiver.intake import Policy
from otel_rollout.redaction.secret_finder import redact_secrets
from tests.receiver.support import JSON_HEADERS, START, in_process, json_request, json_span, request, span
from tests.spool_reader import tree
from tests.waits import set_waits

TIMES = {
    semconv.LATENCY_QUEUE: 1.0,
    semconv.LATENCY_PREFILL: 0.5,
    semconv.LATENCY_DECODE: 2.0,
    semconv.LATENCY_FIRST_TOKEN: 1.75,
    semconv.LATENCY_TOTAL: 4.0,
}
PHASES = ["queue", "prefill", "decode"]


def engine_span(number: int = 1, times: dict[str, Any] = TIMES, **fields: Any) -> dict[str, Any]:
    """Return the fields of an engine's span, as vLLM sends it."""
    attributes = [{"key": key, "value": {"double_value": value}} for key, value in times.items()]
    end = START + 4_000_000_000
    return span(
        number, name="llm_request", kind=2, end_time_unix_nano=end, attributes=attributes, flags=1, **fields
    )


async def test_phases_are_recorded_below_the_engines_span(tmp_path: Path) -> None:
    """They have the engine's trace and resource, scope of ours, and are counted as spans of ours."""
    with in_process(tmp_path) as receiver:
        spans = [engine_span(1), span(2, parent_span_id=(1).to_bytes(8, "big"))]
        answer = await receiver.post(request(spans, scope="vllm.tracing.otel"))
        assert answer.content == b""
        found = receiver.recorded()
        assert tree(found) == {"llm_request": ["span 2", *PHASES]}
        counted = receiver.writer.counters.read()
        assert (counted.started, counted.recorded, counted.other_scopes) == (5, 5, {"vllm.tracing.otel": 2})
        assert receiver.counts.recorded == 2
    assert [each.name for each in found] == ["llm_request", *PHASES, "span 2"]
    assert {each.scope for each in found if each.name in PHASES} == {"otel_rollout"}
    assert {each.resource["service.name"] for each in found} == {"an agent"}
    assert {each.resource["rollout.run.id"] for each in found} == {"the-run"}
    queue = found[1].span
    assert (queue.start_time_unix_nano - START, queue.end_time_unix_nano - START) == (
        250_000_000,
        1_250_000_000,
    )


async def test_repeated_request_repeats_the_ids_of_phases(tmp_path: Path) -> None:
    """A sender that got no answer sends its spans again: each id comes twice, and no other one."""
    with in_process(tmp_path) as receiver:
        for _ in range(2):
            await receiver.post(request([engine_span()]))
        ids = [each.span.span_id for each in receiver.recorded()]
    assert ids[:4] == ids[4:]
    assert len(set(ids)) == 4


async def test_json_gives_the_same_phases_as_protobuf(tmp_path: Path) -> None:
    """Integers and floats are times."""
    attributes = [{"key": key, "value": {"doubleValue": value}} for key, value in TIMES.items()]
    attributes[0] = {"key": semconv.LATENCY_QUEUE, "value": {"intValue": "1"}}
    with in_process(tmp_path) as receiver:
        await receiver.post(request([engine_span()]))
        of_json = json_span(
            name="llm_request", kind=2, attributes=attributes, flags=1, endTimeUnixNano=START + 4_000_000_000
        )
        await receiver.post(orjson.dumps(json_request(of_json)), JSON_HEADERS)
        found = [each.span for each in receiver.recorded() if each.scope == "otel_rollout"]
    assert len(found) == 6
    assert found[:3] == found[3:]


async def test_refused_or_unsampled_request_leaves_no_phases(tmp_path: Path) -> None:
    """Phases share the fate of the engine's span."""
    of_another = engine_span(parent_span_id=b"\1" * 8)  # without a parent, the forwarder would find its call
    with in_process(tmp_path / "a", Policy("the-run", only_trajectories=True)) as receiver:
        await receiver.post(request([of_another]))
        assert receiver.counts.refused_spans == {"belongs to no trajectory of this machine": 1}
        assert not receiver.recorded()
    with in_process(tmp_path / "b", Policy("the-run", decision=lambda *_: False)) as receiver:
        await receiver.post(request([of_another]))
        assert receiver.counts.sampled_out == 1
        assert not receiver.recorded()
    with in_process(tmp_path / "c") as receiver:
        await receiver.post(request([engine_span(span_id=bytes(8)), engine_span(start_time_unix_nano=0)]))
        assert sum(receiver.counts.refused_spans.values()) == 2
        assert not receiver.recorded()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
async def test_span_with_a_wrong_time_is_recorded_without_phases(tmp_path: Path, wrong: float) -> None:
    """The engine's span stays as it was sent."""
    times = {**TIMES, semconv.LATENCY_QUEUE: wrong}
    with in_process(tmp_path) as receiver:
        answer = await receiver.post(request([engine_span(times=times)]))
        assert answer.content == b""
        (found,) = receiver.recorded()
    assert found.name == "llm_request"


async def test_phases_pass_redaction(tmp_path: Path) -> None:
    """What redaction cannot redact is dropped with its phases; what it can is recorded with them."""

    def fails_on_requests(line: bytes) -> bytes:
        if b'"secret"' in line:
            raise ValueError
        return redact_secrets(line)

    secret = [{"key": "secret", "value": {"bool_value": True}}]
    of_secret = engine_span(2)
    of_secret["attributes"] = [*of_secret["attributes"], *secret]
    with in_process(tmp_path, Policy("the-run", redact=fails_on_requests)) as receiver:
        await receiver.post(request([engine_span(1), of_secret]))
        assert [each.name for each in receiver.recorded()] == ["llm_request", *PHASES]
        counted = receiver.writer.counters.read()
    assert counted.started - counted.recorded == 1


async def test_request_that_was_recorded_in_part_is_completed_when_it_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 429 the sender repeats the request: each of its spans then has its three phases, by their ids."""
    content = request([engine_span(number) for number in range(1, 400)])
    with in_process(tmp_path, journal_bytes=1 << 16) as receiver:
        set_waits(monkeypatch, request_room=0.0)
        assert (await receiver.post(content)).status_code == 429
        partly = {each.span.span_id for each in receiver.recorded()}
        set_waits(monkeypatch, request_room=60.0)
        assert (await receiver.post(content)).status_code == 200
        ids = {each.span.span_id for each in receiver.recorded()}
    assert 0 < len(partly) < len(ids) == 4 * 399
