"""Requests to vLLM's server: each span of the engine lies below the model call, with its phases."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.base import semconv
from tests.spool_reader import tree
from tests.vllm.calls import call, joined, seconds_of, stream, wait_for_requests
from tests.vllm.conftest import Engine
from tests.vllm.recording_run import Run
from tests.vllm.server import chat
from tests.waiting import wait_for

IDS = [5, 6, 7, 8, 9]
ENGINE_SPAN = {"llm_request": ["queue", "prefill", "decode"]}
TOKENS = {"model": "tiny", "prompt": IDS, "max_tokens": 8, "ignore_eos": True}
ROUTES = {
    "chat": ("/v1/chat/completions", chat("What is 2 + 3?"), 1),
    "text": ("/v1/completions", {**TOKENS, "prompt": "What is 2 + 3?"}, 1),
    "token ids": ("/v1/completions", {**TOKENS, "return_token_ids": True}, 1),
    "three replies": ("/v1/chat/completions", chat("What is 2 + 3?", n=3, temperature=1.0), 3),
    "generate": (
        "/inference/v1/generate",
        {"model": "tiny", "token_ids": IDS, "sampling_params": {"max_tokens": 8, "ignore_eos": True}},
        1,
    ),
}


@pytest.mark.parametrize("route", ROUTES)
def test_engines_span_lies_below_its_call(run: Run, engine: Engine, route: str) -> None:
    """It has the trajectory's trace and identity, and its phases have the engine's times."""
    path, body, spans_of_engine = ROUTES[route]
    with rollout_trace_attr(step=3, sample_index=1, rollout_n=2):
        response = call(engine.server.url + path, body)
        found = wait_for_requests(run, spans_of_engine)
    spans = run.recorded()
    assert tree(spans) == {"rollout_trace": [{"call": [ENGINE_SPAN] * spans_of_engine}]}
    assert {(each.attributes[semconv.STEP], each.attributes[semconv.SAMPLE_INDEX]) for each in spans} == {
        (3, 1)
    }
    for request in found:
        attributes = request.engine.attributes
        assert attributes["gen_ai.usage.completion_tokens"] == 8
        assert response.get("id", response.get("request_id")) in attributes["gen_ai.request.id"]
    metrics = response.get("metrics")
    if metrics is not None and spans_of_engine == 1:
        said = ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")
        assert seconds_of(found[0]) == pytest.approx([metrics[name] / 1000 for name in said], rel=0.05)
    report = run.finish()
    assert report.lost == 0
    assert report.scopes == {"otel_rollout": 2 + 3 * spans_of_engine, "vllm.tracing.otel": spans_of_engine}
    wait_for(lambda: run.received().recorded == spans_of_engine, what="the receiver's count")


def test_stream_through_openais_client_has_the_engines_span_below_it(run: Run, engine: Engine) -> None:
    """The first chunk comes no earlier than the engine's first token."""

    @rollout_trace_op(name="call", kind="LLM")
    def call_by_openai() -> str:
        client = openai.OpenAI(base_url=engine.server.url + "/v1", api_key="none", max_retries=0)
        parts = client.chat.completions.create(stream=True, extra_body={"ignore_eos": True}, **request)
        return "".join(part.choices[0].delta.content or "" for part in parts if part.choices)

    request: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 24}
    with rollout_trace_attr(step=3):
        call_by_openai()
    (found,) = wait_for_requests(run, 1)
    assert tree(run.recorded()) == {"rollout_trace": [{"call": [ENGINE_SPAN]}]}
    assert found.call is not None
    assert found.engine.attributes["gen_ai.usage.completion_tokens"] == 24
    assert found.phases[1].span.end_time_unix_nano < found.call.span.end_time_unix_nano


async def test_aborted_refused_and_unsampled_requests_have_no_engine_span(run: Run, engine: Engine) -> None:
    """vLLM makes none; the trajectories, and the requests that follow, are recorded as ever."""
    server = engine.server
    url = f"{server.url}/v1/chat/completions"
    with rollout_trace_attr(step=1):
        lines = stream(url, chat("Count.", max_tokens=900))
        assert (await anext(lines)).startswith("data: ")
        await lines.aclose()  # closes the connection
        wait_for(lambda: server.metric("vllm:num_requests_running") == 0, what="the abort")
    with rollout_trace_attr(step=2):
        assert call(url, chat("Count.", max_tokens=-3)) == 400
    with rollout_trace_attr(step=3, trace=False):
        assert call(url, chat("Count."))["id"]
    with rollout_trace_attr(step=4):
        call(url, chat("Count."))
        (found,) = wait_for_requests(run, 1)
    assert found.engine.attributes[semconv.STEP] == 4
    calls = {each.attributes[semconv.STEP] for each in run.recorded() if each.name == "call"}
    assert calls == {1, 2, 4}
    assert run.finish().lost == 0
    wait_for(lambda: run.received().recorded == 1, what="the receiver's count")
    assert run.received().refused_spans == {}


def test_requests_of_a_client_without_tracing_are_traces_of_their_own(run: Run, engine: Engine) -> None:
    """The engine traces each request; one without a trajectory is recorded without identity."""
    httpx.post(f"{engine.server.url}/v1/chat/completions", json=chat("Count."), timeout=300)
    (found,) = wait_for_requests(run, 1)
    assert found.call is None
    assert not found.engine.span.parent_span_id
    assert semconv.STEP not in found.engine.attributes


def test_long_requests_that_preempt_each_other_keep_the_engines_times(run: Run, engine: Engine) -> None:
    """Where the cache is short, requests are computed again: decode includes that, as the engine says."""
    before = engine.server.metric("vllm:num_preemptions_total")
    url = f"{engine.server.url}/v1/completions"
    with rollout_trace_attr(step=3):
        response = call(url, {**TOKENS, "prompt": [IDS] * 6, "max_tokens": 600})
    assert len(response["choices"]) == 6
    assert engine.server.metric("vllm:num_preemptions_total") > before
    found = wait_for_requests(run, 6)
    assert len({request.engine.attributes["gen_ai.request.id"] for request in found}) == 6
    assert {request.call.name for request in found if request.call} == {"call"}


def test_engines_start_is_a_trace_of_its_own(engine: Engine) -> None:
    """vLLM traces how it loads; these spans belong to no trajectory, and are no requests."""
    assert joined(engine.at_start) == []
    assert {"Load model", "Allocate KV cache"} <= {each.name for each in engine.at_start}
    assert {each.attributes.get(semconv.STEP) for each in engine.at_start} == {None}
    assert len({each.span.trace_id for each in engine.at_start}) == 1
