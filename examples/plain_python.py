"""Record a rollout without Ray: one process, groups of trajectories, tools.

    pip install '.[mlflow-local]'    # in a checkout
    OTEL_TRACES_EXPORTER=mlflow MLFLOW_TRACKING_URI=sqlite:///mlflow.db python examples/plain_python.py
    mlflow server --backend-store-uri sqlite:///mlflow.db    # experiment "otel-rollout"

Without the variables the program runs as before and records nothing.
"""

from __future__ import annotations

import ast
import operator
import random
from typing import Any

from opentelemetry import trace

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from otel_rollout.base import semconv

QUESTIONS = {"What is 6 * 7?": 42, "What is 13 + 29?": 42, "What is 100 - 1?": 99}
SIBLINGS = 4
"""Trajectories per question."""
_OPERATORS: dict[type, Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


class Agent:
    """Ask a model, call the tool that it asks for, and answer.

    The model is a random policy.
    """

    def __init__(self, seed: int) -> None:
        self.policy = random.Random(seed)  # noqa: S311

    @rollout_trace_op(kind=semconv.KIND_LLM)
    def generate(self, messages: list[dict[str, str]]) -> dict[str, str]:
        """Return the model's next message."""
        last = messages[-1]["content"]
        if messages[-1]["role"] == "tool":
            content = f"The answer is {last}."
        elif self.policy.random() < 0.7:
            content = f"calculate({last.removeprefix('What is ').rstrip('?')})"
        else:
            content = f"The answer is {self.policy.randint(0, 99)}."  # a guess
        trace.get_current_span().set_attribute(semconv.GEN_AI_USAGE_OUTPUT_TOKENS, len(content.split()))
        return {"role": "assistant", "content": content}

    @rollout_trace_op(kind=semconv.KIND_TOOL)
    def calculate(self, expression: str) -> int:
        """Add, subtract or multiply two numbers: a tool."""
        parsed: Any = ast.parse(expression, mode="eval").body
        result: int = _OPERATORS[type(parsed.op)](parsed.left.value, parsed.right.value)
        return result

    def run(self, question: str) -> str:
        """Hold one conversation, and return its answer."""
        messages = [{"role": "user", "content": question}]
        while True:
            messages.append(self.generate(list(messages)))
            answer = messages[-1]["content"]
            if not answer.startswith("calculate("):
                return answer
            result = self.calculate(answer.removeprefix("calculate(").rstrip(")"))
            messages.append({"role": "tool", "content": str(result)})


def main() -> None:
    """Roll out a group of trajectories for every question."""
    for sample, (question, truth) in enumerate(QUESTIONS.items()):
        for sibling in range(SIBLINGS):
            with rollout_trace_attr(step=1, sample_index=sample, rollout_n=sibling) as trajectory:
                trajectory.set_input(question)
                answer = Agent(seed=10 * sample + sibling).run(question)
                trajectory.set_output(answer)
                score("reward", float(answer == f"The answer is {truth}."))
    print(otel_rollout.shutdown().summary())


if __name__ == "__main__":
    main()
