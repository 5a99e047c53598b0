"""Many requests of many trajectories at once: the join and the times, one by one."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from otel_rollout import rollout_trace_attr
from otel_rollout.base import semconv
from tests.vllm.calls import Joined, call_async, seconds_of, wait_for_requests
from tests.vllm.conftest import Engine
from tests.vllm.recording_run import Run
from tests.vllm.server import Server, chat

TRAJECTORIES = 50
CALLS = 4
SHARE = 0.05
"""Allowed difference between a recorded time and the engine's own."""
METRICS = ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")
"""The engine's names, in a response, of the times of queue, prefill and decode."""
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds_sum": semconv.LATENCY_FIRST_TOKEN,
    "vllm:request_queue_time_seconds_sum": semconv.LATENCY_QUEUE,
    "vllm:request_prefill_time_seconds_sum": semconv.LATENCY_PREFILL,
    "vllm:request_decode_time_seconds_sum": semconv.LATENCY_DECODE,
}
"""Sum of seconds in the engine's own statistics → attribute of its spans."""


async def roll_out(url: str) -> None:
    """Make all calls of all trajectories at once."""
    limits = httpx.Limits(max_connections=TRAJECTORIES * CALLS)
    async with httpx.AsyncClient(limits=limits) as client:

        async def trajectory(number: int) -> None:
            with rollout_trace_attr(step=number % 5, sample_index=number, rollout_n=number % 4):
                bodies = [chat(f"What is {number} + {turn}?", max_tokens=16) for turn in range(CALLS)]
                await asyncio.gather(*(call_async(client, url, body) for body in bodies))

        await asyncio.gather(*(trajectory(number) for number in range(TRAJECTORIES)))


def sums(server: Server) -> dict[str, float]:
    """Return the engine's own sums of seconds."""
    return {name: server.metric(name) for name in HISTOGRAMS}


def test_each_of_200_concurrent_requests_joins_its_call_with_the_engines_times(
    run: Run, engine: Engine
) -> None:
    """Each span is below the call whose response has its request's id, and has the response's times."""
    before = sums(engine.server)
    asyncio.run(roll_out(f"{engine.server.url}/v1/chat/completions"))
    after = sums(engine.server)
    found = wait_for_requests(run, TRAJECTORIES * CALLS)
    assert {each.attributes[semconv.SAMPLE_INDEX] for each in run.recorded()} == set(range(TRAJECTORIES))
    calls = {each.call.span.span_id for each in found if each.call is not None}
    assert len(calls) == TRAJECTORIES * CALLS
    differences = [difference for request in found for difference in _differences(request)]
    for name, attribute in HISTOGRAMS.items():
        total = sum(request.engine.attributes[attribute] for request in found)
        print(f"{attribute}: {total:.3f} s in spans, {after[name] - before[name]:.3f} s by the engine")
        assert total == pytest.approx(after[name] - before[name], rel=SHARE)
    waited, computed = (sum(seconds_of(request)[part] for request in found) for part in (0, 2))
    print(f"{len(calls)} of {len(found)} joined, times differ by at most {max(differences):.2%}")
    print(f"in the queue {waited:.1f} s, in decode {computed:.1f} s of all requests")
    report = run.finish()
    assert (report.lost, report.recorded) == (0, TRAJECTORIES * (1 + 5 * CALLS))


def _differences(request: Joined) -> list[float]:
    """Check that a request's span is that of its call; return by how much its times differ."""
    assert request.call is not None
    response, attributes = request.call.output, request.engine.attributes
    assert attributes["gen_ai.request.id"] == response["id"]
    assert attributes[semconv.SAMPLE_INDEX] == request.call.attributes[semconv.SAMPLE_INDEX]
    assert attributes["gen_ai.usage.completion_tokens"] == response["usage"]["completion_tokens"]
    expected = [response["metrics"][name] / 1000 for name in METRICS]
    recorded = seconds_of(request)
    first_token = recorded[0] + recorded[1], expected[0] + expected[1]
    pairs = [*zip(recorded, expected, strict=True), first_token]
    differences = [abs(one - other) / max(other, 1e-9) for one, other in pairs]
    assert max(differences) <= SHARE
    return differences
