"""Requests that reach vLLM without a trace header join their model call by the request's id."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from otel_rollout import rollout_trace_attr
from otel_rollout.base import semconv
from otel_rollout.forwarder.engine_calls import JOINED, RecordedCalls
from otel_rollout.spool import files
from tests.spool_reader import read_lines
from tests.vllm.calls import Joined, call, call_async, check_phases, joined, stream, wait_for_requests
from tests.vllm.conftest import Engine
from tests.vllm.recording_run import Run
from tests.vllm.server import chat

NO_HEADERS = {"OTEL_ROLLOUT_TRACEPARENT_HOSTS": "none"}
TRAJECTORIES = 20
CALLS = 5


def placed(run: Run) -> list[Joined]:
    """Return the engine's requests as every reader gets them."""
    lines = [line for file in files.segments_below(run.spool) for line in files.lines_of(file)]
    return joined(read_lines(RecordedCalls(lambda: lines).joined(lines)))


def test_each_of_100_concurrent_requests_joins_by_its_id(
    start_run: Callable[..., Run], engine: Engine
) -> None:
    """No header travels; each engine's span and its phases are below the call whose reply has their id."""
    run = start_run(**NO_HEADERS)
    url = f"{engine.server.url}/v1/chat/completions"

    async def roll_out() -> None:
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=TRAJECTORIES * CALLS)) as client:

            async def trajectory(number: int) -> None:
                with rollout_trace_attr(step=1, sample_index=number, rollout_n=0):
                    await asyncio.gather(*(call_async(client, url, chat("hello")) for _ in range(CALLS)))

            await asyncio.gather(*map(trajectory, range(TRAJECTORIES)))

    asyncio.run(roll_out())
    assert all(each.call is None for each in wait_for_requests(run, TRAJECTORIES * CALLS))
    report = run.finish()
    assert dict(report.engine_requests) == {JOINED: TRAJECTORIES * CALLS}
    found = placed(run)
    assert len(found) == TRAJECTORIES * CALLS
    for each in found:
        assert each.call is not None
        assert each.engine.attributes[semconv.GEN_AI_REQUEST_ID] == each.call.output["id"]
        assert each.engine.attributes[semconv.SAMPLE_INDEX] == each.call.attributes[semconv.SAMPLE_INDEX]
        check_phases(each)
    assert len({each.call.span.span_id for each in found if each.call}) == TRAJECTORIES * CALLS


def test_every_route_is_joined(start_run: Callable[..., Run], engine: Engine) -> None:
    """Several replies, several prompts, a stream, a response and generated tokens: all below their call."""
    run, url = start_run(**NO_HEADERS), engine.server.url
    tokens = {"model": "tiny", "max_tokens": 8}
    requests: dict[str, tuple[int, str, dict[str, Any]]] = {
        "n": (3, "/v1/chat/completions", chat("hello", n=3)),
        "prompts": (2, "/v1/completions", {**tokens, "prompt": ["hello", "there"]}),
        "own id": (1, "/v1/chat/completions", chat("hello", request_id="mine")),
        "responses": (1, "/v1/responses", {"model": "tiny", "input": "hello", "max_output_tokens": 8}),
        "generate": (
            1,
            "/inference/v1/generate",
            {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 8}},
        ),
    }
    for name, (_, route, body) in requests.items():
        with rollout_trace_attr(step=1, sample_index=name, rollout_n=0):
            assert isinstance(call(url + route, body), dict)

    async def read_stream() -> None:
        with rollout_trace_attr(step=1, sample_index="stream", rollout_n=0):
            async for _ in stream(f"{url}/v1/chat/completions", chat("hello")):
                pass

    asyncio.run(read_stream())
    expected = {name: number for name, (number, _, _) in requests.items()} | {"stream": 1}
    wait_for_requests(run, sum(expected.values()))
    run.finish()
    found = placed(run)
    assert Counter(each.engine.attributes.get(semconv.SAMPLE_INDEX) for each in found) == expected
    assert all(each.call is not None for each in found)
