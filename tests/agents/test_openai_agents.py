"""The OpenAI Agents SDK with our trace processor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import agents
import pytest
from agents.tracing import get_trace_provider, set_trace_provider
from agents.tracing.provider import DefaultTraceProvider
from openai import AsyncOpenAI
from openai.types.responses import Response
from opentelemetry import trace

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.integrations.openai_agents import OpenAIAgentsInstrumentor
from tests.spool_reader import Recorded, tree

QUESTION = "What do 3 apples and 4 pears cost?"


@rollout_trace_op
def look_up(item: str) -> int:
    return {"apples": 2, "pears": 3}[item]


@agents.function_tool
def price(item: str) -> int:
    """Return a price."""
    return look_up(item)


@agents.function_tool
def calculate(expression: str) -> int:
    """Return a sum."""
    return 18


class Listener(agents.TracingProcessor):
    """A processor of the application's own."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def on_trace_start(self, trace: Any) -> None:
        pass

    def on_trace_end(self, trace: Any) -> None:
        pass

    def on_span_start(self, span: Any) -> None:
        pass

    def on_span_end(self, span: Any) -> None:
        self.ended.append(span.span_data.type)

    def shutdown(self) -> None:
        pass

    def force_flush(self) -> None:
        pass


@pytest.fixture(autouse=True)
def instrumented(tracing: None, openai_server: str) -> Iterator[None]:
    """Add the processor to a trace provider of the test's own, without the SDK's exporter."""
    set_trace_provider(DefaultTraceProvider())
    instrumentor = OpenAIAgentsInstrumentor()
    instrumentor.instrument(tracer_provider=otel_rollout.tracer_provider())
    yield
    instrumentor.uninstrument()


@asynccontextmanager
async def agent(model: str = "shop", **further: Any) -> AsyncIterator[agents.Agent]:
    async with AsyncOpenAI(max_retries=0) as client:
        asked = agents.OpenAIChatCompletionsModel(model, client)
        yield agents.Agent(name="clerk", model=asked, tools=[price, calculate], **further)


def run_agent(**options: Any) -> str:
    async def ask() -> str:
        async with agent(**options) as clerk:
            return str((await agents.Runner.run(clerk, QUESTION)).final_output)

    return asyncio.run(ask())


def run(index: int = 0, **options: Any) -> str:
    with rollout_trace_attr(step=1, sample_index=index, rollout_n=0):
        return run_agent(**options)


Read = Callable[[], list[Recorded]]


def test_run_becomes_a_tree_below_the_trajectory(recorded: Read) -> None:
    """Model calls and tools are below the agent; an operation inside a tool is below the tool."""
    assert run() == "3 apples and 4 pears cost 18."
    tool = {"price": ["look_up"]}
    below = ["generation", tool, "generation", tool, "generation", "calculate", "generation"]
    assert tree(recorded()) == {"rollout_trace": [{"clerk": below}]}


def test_model_call_has_messages_tokens_and_model(recorded: Read) -> None:
    """A span of the SDK shows what a decorated call of the model would."""
    run()
    last = [span for span in recorded() if span.name == "generation"][-1]
    assert last.input["messages"][0] == {"role": "user", "content": QUESTION}
    assert [message["role"] for message in last.input["messages"]] == ["user"] + ["assistant", "tool"] * 3
    assert last.output["choices"][0]["message"]["content"] == "3 apples and 4 pears cost 18."
    attributes = last.attributes
    assert attributes["openinference.span.kind"] == "LLM"
    assert attributes["gen_ai.request.model"] == "shop"
    assert attributes["gen_ai.usage.input_tokens"] > attributes["gen_ai.usage.output_tokens"] > 0


def test_tool_has_arguments_and_result(recorded: Read) -> None:
    """The arguments are those of the model."""
    run()
    first = next(span for span in recorded() if span.name == "price")
    assert (first.input, first.output) == ({"item": "apples"}, 2)
    assert first.attributes["openinference.span.kind"] == "TOOL"


def test_run_outside_a_trajectory_is_not_recorded(recorded: Read) -> None:
    """Other runs of the program stay what they were."""
    run_agent()
    assert [span for span in recorded() if span.name != "look_up"] == []


def test_processors_that_the_application_sets_later_do_not_end_recording(recorded: Read) -> None:
    """Users replace the list so that nothing goes to OpenAI; ours stays, once, beside theirs."""
    listener = Listener()
    agents.set_trace_processors([listener])
    agents.set_trace_processors([listener])
    run()
    assert sum(span.name == "generation" for span in recorded()) == 4
    assert listener.ended.count("generation") == 4


def test_tracing_that_the_application_switches_off_stays_off(recorded: Read) -> None:
    """The SDK then reports nothing, to nobody."""
    agents.set_tracing_disabled(True)
    run()
    assert {span.name for span in recorded()} == {"rollout_trace", "look_up"}


def test_context_after_a_run_is_the_one_before(recorded: Read) -> None:
    """The trajectory's root is current again."""
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
        root = trace.get_current_span()
        run_agent()
        assert trace.get_current_span() is root


def test_failed_model_call_is_an_error_and_reaches_the_caller(recorded: Read) -> None:
    """The server answers 500: the agent's exception is the SDK's, the spans say why."""
    with pytest.raises(Exception, match="The model has failed"):
        run(model="shop:error")
    by_name = {span.name: span.span for span in recorded()}
    assert by_name["generation"].status.message.startswith("Error getting response")
    assert "The model has failed" in by_name["generation"].status.message
    assert {span.status.code for span in by_name.values()} == {2}


def test_streamed_run_that_is_abandoned_leaves_whole_spans(recorded: Read) -> None:
    """The consumer leaves after the first event; what had started is recorded, once."""

    async def abandon() -> None:
        async with agent() as clerk, rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
            result = agents.Runner.run_streamed(clerk, QUESTION)
            async for event in result.stream_events():
                if event.type == "raw_response_event":
                    break
            result.cancel()

    asyncio.run(abandon())
    spans = recorded()
    assert {span.name for span in spans} == {"rollout_trace", "clerk", "generation"}
    assert len({span.span.trace_id for span in spans}) == 1


def test_parallel_trajectories_do_not_mix(recorded: Read) -> None:
    """Thirty runs at once in one event loop: each trace has its own four model calls."""

    async def one(clerk: agents.Agent, index: int) -> None:
        async with rollout_trace_attr(step=1, sample_index=index, rollout_n=0):
            await agents.Runner.run(clerk, QUESTION)

    async def all_at_once() -> None:
        async with agent() as clerk:
            await asyncio.gather(*(one(clerk, index) for index in range(30)))

    asyncio.run(all_at_once())
    by_trace: dict[bytes, list[Recorded]] = {}
    for span in recorded():
        by_trace.setdefault(span.span.trace_id, []).append(span)
    assert len(by_trace) == 30
    for spans in by_trace.values():
        assert len({span.attributes["rollout.sample_index"] for span in spans}) == 1
        assert list(tree(spans)["rollout_trace"][0]) == ["clerk"]


def test_guardrail_is_a_span_by_its_name(recorded: Read) -> None:
    """Its output says whether it was triggered."""

    @agents.input_guardrail
    def harmless(context: Any, agent: Any, text: Any) -> agents.GuardrailFunctionOutput:
        return agents.GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    run(input_guardrails=[harmless])
    (guardrail,) = [span for span in recorded() if span.name == "harmless"]
    assert guardrail.attributes["openinference.span.kind"] == "GUARDRAIL"
    assert guardrail.output == {"triggered": False}


def test_call_of_the_responses_api_has_items_tokens_and_model(recorded: Read) -> None:
    """The SDK's default API: its items are recorded as the API returns them."""
    arguments = {"name": "price", "arguments": '{"item": "apples"}', "call_id": "call_0"}
    reply = Response.model_validate(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 0,
            "model": "shop",
            "output": [{"type": "function_call", **arguments}],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": 27,
                "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
                "output_tokens": 10,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 37,
            },
        }
    )
    asked = [{"role": "user", "content": QUESTION}]
    with (
        rollout_trace_attr(step=1, sample_index=0, rollout_n=0),
        agents.trace("a run"),
        agents.tracing.response_span() as span,
    ):
        span.span_data.input = asked
        span.span_data.response = reply
    call = next(span for span in recorded() if span.name == "response")
    assert call.input == {"input": asked}
    assert {name: call.output["output"][0][name] for name in arguments} == arguments
    names = ("request.model", "usage.input_tokens", "usage.output_tokens", "usage.cache_read.input_tokens")
    assert [call.attributes[f"gen_ai.{name}"] for name in names] == ["shop", 27, 10, 3]


def test_handoff_tells_from_whom_to_whom(recorded: Read) -> None:
    """A handoff is a step of the trajectory."""
    with (
        rollout_trace_attr(step=1, sample_index=0, rollout_n=0),
        agents.trace("a run"),
        agents.handoff_span(from_agent="clerk", to_agent="manager"),
    ):
        pass
    handoff = next(span for span in recorded() if span.name == "handoff")
    assert (handoff.input, handoff.output) == ("clerk", "manager")


def test_uninstrument_stops_recording(recorded: Read) -> None:
    """The processor does nothing any more, and the application's list is left alone."""
    OpenAIAgentsInstrumentor().uninstrument()
    assert not OpenAIAgentsInstrumentor().is_instrumented_by_opentelemetry
    listener = Listener()
    agents.set_trace_processors([listener])
    run()
    assert {span.name for span in recorded()} == {"rollout_trace", "look_up"}
    assert get_trace_provider()._multi_processor._processors == (listener,)
