"""A PydanticAI agent whose every step is seen; PydanticAI makes the spans itself.

pip install '.[otlp]' 'pydantic-ai-slim[openai]'  # in a checkout
OTEL_TRACES_EXPORTER=otlp OTEL_ROLLOUT_INSTRUMENT=pydantic_ai python examples/agents/pydantic_ai_agent.py
"""

from __future__ import annotations

from functools import cache

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

import rollout
from otel_rollout import instrument, rollout_trace_attr, score


@cache
def agent() -> Agent:
    """Build the agent."""
    return Agent(OpenAIChatModel(rollout.MODEL), tools=[rollout.price, rollout.calculate])


def trajectory(index: int) -> None:
    """Answer the question of one row."""
    question, right = rollout.task(index)
    with rollout_trace_attr(step=1, sample_index=index, rollout_n=0) as trace:
        trace.set_input(question)
        answer = agent().run_sync(question).output
        trace.set_output(answer)
        score("reward", float(right in answer))


if __name__ == "__main__":
    instrument()
    rollout.run(trajectory)
