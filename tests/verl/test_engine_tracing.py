"""The engine's own spans, which join the trajectory."""

from __future__ import annotations

import types
from collections.abc import AsyncIterator
from typing import Any

import pytest

import otel_rollout
from otel_rollout.integrations.verl import vllm


class AsyncLLM:
    """Stand-in for vLLM's class, which needs a GPU.

    ``generate`` has vLLM's parameters.
    """

    def __init__(self, endpoint: str | None, log_stats: bool = True) -> None:
        self.log_stats = log_stats
        self.observability_config = types.SimpleNamespace(otlp_traces_endpoint=endpoint)
        self.seen: list[Any] = []

    async def generate(
        self,
        prompt: Any,
        sampling_params: Any,
        request_id: str,
        *,
        lora_request: Any = None,
        trace_headers: dict[str, str] | None = None,
        priority: int = 0,
    ) -> AsyncIterator[int]:
        self.seen.append(trace_headers)
        yield 1


def _patched(endpoint: str | None, log_stats: bool = True) -> AsyncLLM:
    module: Any = types.ModuleType("vllm.v1.engine.async_llm")
    module.AsyncLLM = type("AsyncLLM", (AsyncLLM,), {"generate": AsyncLLM.generate})
    vllm.install(module)
    return module.AsyncLLM(endpoint, log_stats)


async def _call(engine: AsyncLLM, **more: Any) -> None:
    assert [token async for token in engine.generate("p", None, "id", **more)] == [1]


async def test_request_of_a_trajectory_has_trace_headers(tracing: None) -> None:
    """Where vLLM traces, its request span continues the trace; given headers stay."""
    engine = _patched("grpc://127.0.0.1:4317")
    with otel_rollout.rollout_trace_attr(step=1) as trajectory:
        await _call(engine)
        await _call(engine, trace_headers={"traceparent": "mine"})
    await _call(engine)
    (headers, given, outside) = engine.seen
    assert headers["traceparent"].split("-")[1] == trajectory.trace_id
    assert given == {"traceparent": "mine"}
    assert outside is None


async def test_request_gets_no_headers_if_vllm_does_not_trace(tracing: None) -> None:
    """vLLM warns of headers that it does not use."""
    engine = _patched(None)
    with otel_rollout.rollout_trace_attr(step=1):
        await _call(engine)
    assert engine.seen == [None]


async def test_tracing_engine_without_statistics_is_one_warning(
    tracing: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM makes spans from statistics, which verl disables by default."""
    for engine in (_patched(None, log_stats=False), _patched("grpc://127.0.0.1:4317")):
        await _call(engine)
    assert caplog.messages == []
    engine = _patched("grpc://127.0.0.1:4317", log_stats=False)
    await _call(engine)
    await _call(engine)
    (warning,) = caplog.messages
    assert "actor_rollout_ref.rollout.disable_log_stats=False" in warning
