"""PydanticAI's own spans, switched on by our adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from openai import AsyncOpenAI
from opentelemetry.sdk.trace import TracerProvider
from pydantic_ai import Agent
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import otel_rollout
from otel_rollout import rollout_trace_attr
from otel_rollout.integrations.pydantic_ai import PydanticAIInstrumentor
from tests.spool_reader import Recorded, tree

QUESTION = "What do 3 apples and 4 pears cost?"
Read = Callable[[], list[Recorded]]


def price(item: str) -> int:
    """Return a price."""
    return {"apples": 2, "pears": 3}[item]


def calculate(expression: str) -> int:
    """Return a sum."""
    return 18


@pytest.fixture(autouse=True)
def default(tracing: None, openai_server: str) -> Iterator[None]:
    """Leave PydanticAI as it was."""
    yield
    Agent.instrument_all(False)


def instrument() -> None:
    PydanticAIInstrumentor().instrument(tracer_provider=otel_rollout.tracer_provider())


def ask(instrument: bool | None = None) -> str:
    async def ask_agent() -> str:
        async with AsyncOpenAI() as client:
            model = OpenAIChatModel("shop", provider=OpenAIProvider(openai_client=client))
            agent = Agent(model, tools=[price, calculate])
            agent.instrument = instrument
            return (await agent.run(QUESTION)).output

    return asyncio.run(ask_agent())


def run(instrument: bool | None = None) -> str:
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
        return ask(instrument)


def test_run_becomes_a_tree_below_the_trajectory(recorded: Read) -> None:
    """The agent, its model calls and its tools, by the names that PydanticAI gives them."""
    instrument()
    assert run() == "3 apples and 4 pears cost 18."
    tools = ["execute_tool price", "execute_tool price", "execute_tool calculate"]
    below = [name for tool in tools for name in ("chat shop", tool)] + ["chat shop"]
    assert tree(recorded()) == {"rollout_trace": [{"invoke_agent agent": below}]}


def test_run_outside_a_trajectory_is_not_recorded(recorded: Read) -> None:
    """Other runs of the program stay what they were."""
    instrument()
    ask()
    assert recorded() == []


def test_agent_that_refuses_instrumentation_is_not_recorded(recorded: Read) -> None:
    """An agent's own setting wins."""
    instrument()
    run(instrument=False)
    assert [span.name for span in recorded()] == ["rollout_trace"]


def test_default_that_the_application_has_set_stays(recorded: Read) -> None:
    """The application's settings are neither replaced nor removed."""
    settings = InstrumentationSettings(tracer_provider=TracerProvider(), include_content=False)
    Agent.instrument_all(settings)
    assert PydanticAIInstrumentor().is_instrumented_by_opentelemetry
    instrument()
    assert Agent._instrument_default is settings
    PydanticAIInstrumentor().uninstrument()
    assert Agent._instrument_default is settings


def test_uninstrument_restores_the_default(recorded: Read) -> None:
    """Agents then make no spans."""
    instrument()
    PydanticAIInstrumentor().uninstrument()
    assert not PydanticAIInstrumentor().is_instrumented_by_opentelemetry
    run()
    assert [span.name for span in recorded()] == ["rollout_trace"]
