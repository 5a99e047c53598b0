"""A LangGraph agent whose every step is seen: graph, model calls and tools.

pip install '.[otlp]' langgraph langchain-openai openinference-instrumentation-langchain  # in a checkout
OTEL_TRACES_EXPORTER=otlp OTEL_ROLLOUT_INSTRUMENT=langchain python examples/agents/langgraph_agent.py
"""

from __future__ import annotations

from functools import cache
from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import rollout
from otel_rollout import instrument, rollout_trace_attr, score


@cache
def agent() -> Any:
    """Build the graph: the model, and the tools that it calls until it has an answer."""
    tools = [rollout.price, rollout.calculate]
    model = ChatOpenAI(model=rollout.MODEL).bind_tools(tools)

    def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def trajectory(index: int) -> None:
    """Answer the question of one row."""
    question, right = rollout.task(index)
    with rollout_trace_attr(step=1, sample_index=index, rollout_n=0) as trace:
        trace.set_input(question)
        answer = agent().invoke({"messages": [("user", question)]})["messages"][-1].content
        trace.set_output(answer)
        score("reward", float(right in answer))


if __name__ == "__main__":
    instrument()
    rollout.run(trajectory)
