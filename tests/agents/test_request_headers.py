"""Requests of OpenAI's, Anthropic's and LiteLLM's clients carry the current span."""

from __future__ import annotations

import json

import pytest
from opentelemetry.instrumentation.httpx import HTTPX2ClientInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.propagation import carrier
from tests.fake_server import serving

MESSAGES = [{"role": "user", "content": "2 + 2?"}]
COMPLETION = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "tiny",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "4"}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}
CHUNK = {
    "id": "1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "tiny",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "4"}, "finish_reason": None}],
}
MESSAGE = {
    "id": "1",
    "type": "message",
    "role": "assistant",
    "model": "tiny",
    "content": [{"type": "text", "text": "4"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def server():
    answers = {
        "/chat/completions": (200, JSON, json.dumps(COMPLETION).encode()),
        "/streamed/chat/completions": (
            200,
            {"Content-Type": "text/event-stream"},
            f"data: {json.dumps(CHUNK)}\n\n".encode() * 3 + b"data: [DONE]\n\n",
        ),
        "/messages": (200, JSON, json.dumps(MESSAGE).encode()),
        "/unstable/chat/completions": (500, JSON, b"{}"),
    }
    with serving(answers) as fake:
        yield fake


@pytest.fixture(autouse=True)
def instrumented(tracing):
    otel_rollout.instrument()
    yield
    otel_rollout.uninstrument()


@rollout_trace_op
def openai_call(url):
    from openai import OpenAI

    with OpenAI(base_url=url, api_key="x") as client:
        answer = client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.choices[0].message.content == "4"
    return carrier.inject_span()["traceparent"]


@rollout_trace_op
async def async_openai_call(url):
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key="x") as client:
        await client.chat.completions.create(model="tiny", messages=MESSAGES)
    return carrier.inject_span()["traceparent"]


@rollout_trace_op
def streamed_openai_call(url):
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/streamed", api_key="x") as client:
        chunks = client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        assert [chunk.choices[0].delta.content for chunk in chunks] == ["4"] * 3
        with client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True) as abandoned:
            next(iter(abandoned))
    return carrier.inject_span()["traceparent"]


@rollout_trace_op
def anthropic_call(url):
    from anthropic import Anthropic

    with Anthropic(base_url=url, api_key="x") as client:
        client.messages.create(model="tiny", max_tokens=9, messages=MESSAGES)
    return carrier.inject_span()["traceparent"]


@rollout_trace_op
async def litellm_call(url):
    import litellm

    await litellm.acompletion("openai/tiny", MESSAGES, api_base=url, api_key="x")
    return carrier.inject_span()["traceparent"]


@pytest.mark.parametrize("call", [openai_call, streamed_openai_call])
def test_request_carries_the_operation_around_it(call, server):
    """The server can put its own spans below the call."""
    with rollout_trace_attr(step=3):
        expected = call(server.uri)
    assert {request.headers["traceparent"] for request in server.received} == {expected}


def test_request_of_a_client_with_spans_of_its_own_carries_its_span(server):
    """Anthropic's client starts a span for each call; the span joins the trajectory."""
    with rollout_trace_attr(step=3):
        operation = anthropic_call(server.uri)
    (carried,) = {request.headers["traceparent"] for request in server.received}
    assert carried.split("-")[1] == operation.split("-")[1]
    assert carried.split("-")[2] != operation.split("-")[2]


@pytest.mark.parametrize("call", [async_openai_call, litellm_call])
async def test_asynchronous_request_carries_the_operation_around_it(call, server):
    """The request is sent in the caller's context."""
    with rollout_trace_attr(step=3):
        expected = await call(server.uri)
    assert {request.headers["traceparent"] for request in server.received} == {expected}


def test_retries_of_openai_carry_the_operation(server):
    """The client builds a request for each attempt."""
    import openai

    client = openai.OpenAI(base_url=f"{server.uri}/unstable", api_key="x", max_retries=1)
    with client, rollout_trace_attr(step=3) as trajectory, pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert [request.headers.get_all("traceparent") for request in server.received] == [[trajectory.id]] * 2


@pytest.mark.parametrize("is_first", [True, False])
def test_span_of_an_instrumentor_is_carried_once(is_first, server):
    """The instrumentor of httpx2 injects its span, whichever of the two came first."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    if is_first:
        otel_rollout.uninstrument()
    HTTPX2ClientInstrumentor().instrument(tracer_provider=provider)
    otel_rollout.instrument()
    try:
        with rollout_trace_attr(step=3):
            openai_call(server.uri)
    finally:
        otel_rollout.uninstrument()
        HTTPX2ClientInstrumentor().uninstrument()
    (span,) = exporter.get_finished_spans()
    context = span.get_span_context()
    (request,) = server.received
    (header,) = request.headers.get_all("traceparent")
    assert header.split("-")[1:3] == [f"{context.trace_id:032x}", f"{context.span_id:016x}"]
