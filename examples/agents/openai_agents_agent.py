"""An agent of the OpenAI Agents SDK whose every step is seen: run, model calls and tools.

pip install '.[otlp]' openai-agents  # in a checkout
OTEL_TRACES_EXPORTER=otlp OTEL_ROLLOUT_INSTRUMENT=openai_agents python examples/agents/openai_agents_agent.py
"""

from __future__ import annotations

from functools import cache

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_trace_processors
from openai import AsyncOpenAI

import rollout
from otel_rollout import instrument, rollout_trace_attr, score

set_trace_processors([])  # otherwise the SDK sends every run to OpenAI, too


@cache
def agent() -> Agent:
    """Build the agent."""
    return Agent(
        name="shop",
        model=OpenAIChatCompletionsModel(rollout.MODEL, AsyncOpenAI()),
        tools=[function_tool(rollout.price), function_tool(rollout.calculate)],
    )


def trajectory(index: int) -> None:
    """Answer the question of one row."""
    question, right = rollout.task(index)
    with rollout_trace_attr(step=1, sample_index=index, rollout_n=0) as trace:
        trace.set_input(question)
        answer = Runner.run_sync(agent(), question).final_output
        trace.set_output(answer)
        score("reward", float(right in answer))


if __name__ == "__main__":
    instrument()
    rollout.run(trajectory)
