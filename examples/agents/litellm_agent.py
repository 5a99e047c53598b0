"""An agent loop on LiteLLM; the instrumentor sees the model calls.

    pip install '.[otlp]' litellm openinference-instrumentation-litellm  # in a checkout
    export OTEL_TRACES_EXPORTER=otlp OTEL_ROLLOUT_INSTRUMENT=litellm
    python examples/agents/litellm_agent.py

A tool of a loop of your own is seen with ``rollout_trace_op(kind="TOOL")``.
"""

from __future__ import annotations

import json
from typing import Any

import litellm

import rollout
from otel_rollout import instrument, rollout_trace_attr, rollout_trace_op, score

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": function.__name__,
            "description": function.__doc__,
            "parameters": {"type": "object", "properties": {argument: {"type": "string"}}},
        },
    }
    for function, argument in ((rollout.price, "item"), (rollout.calculate, "expression"))
]


@rollout_trace_op(kind="TOOL")
def call_tool(name: str, arguments: str) -> str:
    """Call a tool as the model asks."""
    functions: dict[str, Any] = {"price": rollout.price, "calculate": rollout.calculate}
    return str(functions[name](**json.loads(arguments)))


def answer_to(question: str) -> str:
    """Ask the model until it calls no more tools."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(8):
        answered = litellm.completion(model=f"openai/{rollout.MODEL}", messages=messages, tools=TOOLS)
        message = answered.choices[0].message
        if not message.tool_calls:
            return str(message.content)
        messages.append(message)
        for call in message.tool_calls:
            result = call_tool(call.function.name, call.function.arguments)
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
