"""A smolagents agent whose every step is seen: run, steps, model calls and tools.

pip install '.[otlp]' 'smolagents[openai]' openinference-instrumentation-smolagents  # in a checkout
OTEL_TRACES_EXPORTER=otlp OTEL_ROLLOUT_INSTRUMENT=smolagents python examples/agents/smolagents_agent.py
"""

from __future__ import annotations

import os
from functools import cache

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

import rollout
from otel_rollout import instrument, rollout_trace_attr, score


@cache
def model() -> OpenAIModel:
    """Return the client of the model, which all trajectories share."""
    return OpenAIModel(rollout.MODEL, os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])


def trajectory(index: int) -> None:
    """Answer the question of one row."""
    question, right = rollout.task(index)
    agent = ToolCallingAgent(
        [tool(rollout.price), tool(rollout.calculate)], model(), verbosity_level=LogLevel.OFF
    )
    with rollout_trace_attr(step=1, sample_index=index, rollout_n=0) as trace:
        trace.set_input(question)
        answer = str(agent.run(question))
        trace.set_output(answer)
        score("reward", float(right in answer))


if __name__ == "__main__":
    instrument()
    rollout.run(trajectory)
