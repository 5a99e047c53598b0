"""Calls of the real OpenAI client, instrumented in each usual way, are spans of their trajectories."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from tests.fake_server import FakeServer, serving
from tests.spool_reader import Recorded, tree

openai = pytest.importorskip("openai")
pytest.importorskip("openai.resources")  # all of the client's classes
openinference = pytest.importorskip("openinference.instrumentation.openai")
openllmetry = pytest.importorskip("opentelemetry.instrumentation.openai")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
MESSAGES = [{"role": "user", "content": "3+4?"}]
USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
COMMON = {"id": "c1", "created": 1, "model": "model"}
ANSWER = {
    **COMMON,
    "object": "chat.completion",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "It is 7."}}
    ],
    "usage": USAGE,
}


def stream() -> bytes:
    """Return a streamed answer of three words, its usage at the end."""
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": word}}]}
        for word in ("It ", "is ", "7.")
    ]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    chunks.append({"choices": [], "usage": USAGE})
    lines = [json.dumps({**COMMON, "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    answers = {
        "/whole/": (200, {"content-type": "application/json"}, json.dumps(ANSWER).encode()),
        "/stream/": (200, {"content-type": "text/event-stream"}, stream()),
        "/broken/": (500, {"content-type": "application/json"}, b'{"error": {"message": "down"}}'),
    }
    with serving(answers) as fake:
        yield fake


@pytest.fixture
def call(server) -> Callable[..., Any]:
    """Return a function that asks the model, by the part of the server that answers in some way."""

    def ask(how: str = "whole", **options: Any) -> Any:
        client = openai.OpenAI(base_url=f"{server.uri}/{how}/v1", api_key="none", max_retries=0)
        return client.chat.completions.create(model="model", messages=MESSAGES, **options)

    return ask


@pytest.fixture
def instrumented() -> Iterator[None]:
    """Instrument the client as an application does, without a word about otel-rollout."""
    instrumentor = openinference.OpenAIInstrumentor()
    instrumentor.instrument()
    yield
    instrumentor.uninstrument()


@pytest.fixture
def restored_client() -> Iterator[None]:
    """Restore the client's classes after the test, which OpenLLMetry's instrumentor does not."""
    modules = [module for name, module in sys.modules.items() if name.startswith("openai.resources")]
    classes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    before = [(class_, name, value) for class_ in classes for name, value in vars(class_).items()]
    yield
    for class_, name, value in before:
        if vars(class_).get(name) is not value:
            setattr(class_, name, value)


def model_calls(spans: list[Recorded]) -> list[Recorded]:
    return [span for span in spans if span.scope.startswith(("openinference.", "opentelemetry."))]


def check(span: Recorded) -> None:
    """Check that a model call has the trajectory's identity, its messages and its tokens."""
    attributes = span.attributes
    assert attributes["rollout.step"] == 3
    assert attributes["llm.input_messages.0.message.content"] == "3+4?"
    assert attributes["llm.output_messages.0.message.content"] == "It is 7."
    assert (attributes["llm.token_count.prompt"], attributes["llm.token_count.completion"]) == (11, 3)


def test_call_has_identity_messages_and_tokens(recorded, instrumented, call):
    """In this thread, and in a pool's; outside the trajectory it is not recorded."""
    otel_rollout.instrument()
    call()
    with rollout_trace_attr(step=3), ThreadPoolExecutor() as pool:
        call()
        pool.submit(call).result()
    spans = recorded()
    assert tree(spans) == {"rollout_trace": ["ChatCompletion", "ChatCompletion"]}
    for span in model_calls(spans):
        check(span)


def test_asynchronous_calls_are_recorded_beside_each_other(recorded, instrumented, server):
    """Each below the operation that made it."""
    client = openai.AsyncOpenAI(base_url=f"{server.uri}/whole/v1", api_key="none")

    @rollout_trace_op(name="turn")
    async def turn() -> None:
        await client.chat.completions.create(model="model", messages=MESSAGES)

    async def rollout() -> None:
        with rollout_trace_attr(step=3):
            await asyncio.gather(turn(), turn())
        await client.close()

    asyncio.run(rollout())
    spans = recorded()
    assert tree(spans) == {"rollout_trace": [{"turn": ["ChatCompletion"]}] * 2}
    for span in model_calls(spans):
        check(span)


def test_streamed_answer_is_whole(recorded, instrumented, call):
    """The span ends with the stream, and has what it brought."""
    with rollout_trace_attr(step=3):
        chunks = list(call("stream", stream=True, stream_options={"include_usage": True}))
    assert len(chunks) == 4
    (span,) = model_calls(recorded())
    check(span)


def test_abandoned_stream_loses_nothing_else(recorded, instrumented, call):
    """Nothing raises; the other spans of the trajectory are recorded."""
    with rollout_trace_attr(step=3):
        next(iter(call("stream", stream=True)))
        with call("stream", stream=True) as answer:
            next(iter(answer))
        call()
    gc.collect()
    spans = recorded()
    assert "rollout_trace" in {span.name for span in spans}
    check(next(span for span in model_calls(spans) if "llm.token_count.prompt" in span.attributes))


def test_failed_call_has_its_exception(recorded, instrumented, call):
    """The exception reaches the program unchanged."""
    with rollout_trace_attr(step=3), pytest.raises(openai.InternalServerError):
        call("broken")
    (span,) = model_calls(recorded())
    assert span.span.status.code == 2
    assert [event.name for event in span.span.events] == ["exception"]


@pytest.mark.usefixtures("restored_client")
def test_two_instrumentors_make_one_span_and_one_warning(recorded, instrumented, call, caplog):
    """The outer span is kept, with its tokens; the warning names both."""
    other = openllmetry.OpenAIInstrumentor()
    other.instrument()
    try:
        with rollout_trace_attr(step=3):
            call()
            call()
    finally:
        other.uninstrument()
    spans = model_calls(recorded())
    assert [span.attributes["gen_ai.usage.input_tokens"] for span in spans] == [11, 11]
    warnings = [record.getMessage() for record in caplog.records if record.name == "otel_rollout"]
    assert len(warnings) == 1
    assert "openinference.instrumentation.openai and opentelemetry.instrumentation.openai both" in warnings[0]


def test_setting_switches_the_instrumentor_on(recorded, call):
    """One variable is enough, and uninstrument() takes it back."""
    otel_rollout.configure(instrument="openai")
    otel_rollout.instrument()
    with rollout_trace_attr(step=3):
        call()
    (span,) = model_calls(recorded())
    check(span)
    otel_rollout.uninstrument()
    assert not openinference.OpenAIInstrumentor().is_instrumented_by_opentelemetry


def test_instrumentor_that_holds_our_provider_records(recorded, call):
    """``tracer_provider=`` serves the instrumentor that was handed it."""
    instrumentor = openinference.OpenAIInstrumentor()
    instrumentor.instrument(tracer_provider=otel_rollout.tracer_provider())
    try:
        call()
        with rollout_trace_attr(step=3):
            call()
    finally:
        instrumentor.uninstrument()
    (span,) = model_calls(recorded())
    check(span)
