"""An agent loop on OpenAI's client, with streaming; the instrumentor sees the model calls.

pip install '.[otlp]' openai openinference-instrumentation-openai  # in a checkout
OTEL_TRACES_EXPORTER=otlp OTEL_ROLLOUT_INSTRUMENT=openai python examples/agents/openai_agent.py
"""

from __future__ import annotations

from functools import cache
from typing import Any

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

import rollout
from otel_rollout import instrument, rollout_trace_attr, rollout_trace_op, score


class Price(BaseModel):
    """Return what one piece of an item costs."""

    item: str


class Calculate(BaseModel):
    """Return the value of a sum of products."""

    expression: str


@rollout_trace_op(kind="TOOL")
def call_tool(name: str, arguments: Price | Calculate) -> str:
    """Run the tool that the model has called."""
    if isinstance(arguments, Price):
        return str(rollout.price(arguments.item))
    return str(rollout.calculate(arguments.expression))


@cache
def client() -> OpenAI:
    """Return the client that all trajectories share."""
    return OpenAI()


def answer_to(question: str) -> str:
    """Ask the model until it calls no more tools."""
    tools = [pydantic_function_tool(Price, name="price"), pydantic_function_tool(Calculate, name="calculate")]
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(8):
        with client().chat.completions.stream(
            model=rollout.MODEL, messages=messages, tools=tools, stream_options={"include_usage": True}
        ) as stream:
            message = stream.get_final_completion().choices[0].message
        if not message.tool_calls:
            return str(message.content)
        messages.append(message)
        for call in message.tool_calls:
            result = call_tool(call.function.name, call.function.parsed_arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


def trajectory(index: int) -> None:
    """Answer the question of one row."""
    question, right = rollout.task(index)
    with rollout_trace_attr(step=1, sample_index=index, rollout_n=0) as trace:
        trace.set_input(question)
        answer = answer_to(question)
        trace.set_output(answer)
        score("reward", float(right in answer))


if __name__ == "__main__":
    instrument()
    rollout.run(trajectory)
