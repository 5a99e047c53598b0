"""The engine is killed under way and comes back, first without tracing, then with it."""

from __future__ import annotations

import httpx
import pytest

from otel_rollout import rollout_trace_attr
from otel_rollout.base import semconv
from tests.spool_reader import tree
from tests.vllm.calls import call, stream, wait_for_requests
from tests.vllm.conftest import Engine
from tests.vllm.recording_run import Run
from tests.vllm.server import chat


async def test_killed_engine_loses_the_requests_under_way_alone(run: Run, engine: Engine) -> None:
    """Spans of before stay, an engine without tracing leaves the calls, and spans of the next one join."""
    server = engine.server
    url = f"{server.url}/v1/chat/completions"
    with rollout_trace_attr(step=1):
        call(url, chat("Count."))
        wait_for_requests(run, 1)
        lines = stream(url, chat("Count.", max_tokens=900))
        await anext(lines)
        server.kill()
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in lines:
                pass
        with pytest.raises(httpx.ConnectError):
            call(url, chat("Count."))

    server.start(engine.variables)
    with rollout_trace_attr(step=2):
        assert call(url, chat("Count."))["id"]
    server.stop()

    engine.start()
    with rollout_trace_attr(step=3):
        call(url, chat("Count."))
        found = wait_for_requests(run, 2)
    assert [request.engine.attributes[semconv.STEP] for request in found] == [1, 3]
    spans = run.recorded()
    engine_span = {"llm_request": ["queue", "prefill", "decode"]}
    expected = {1: [{"call": [engine_span]}, "call", "call"], 2: ["call"], 3: [{"call": [engine_span]}]}
    for step, below in expected.items():
        assert tree([each for each in spans if each.attributes.get(semconv.STEP) == step]) == {
            "rollout_trace": below
        }
    assert run.finish().lost == 0
