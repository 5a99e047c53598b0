"""Train the policy of pocket_trainer on three questions; one of them breaks the tool.

    OTEL_TRACES_EXPORTER=mlflow MLFLOW_TRACKING_URI=sqlite:///mlflow.db python examples/own_trainer/train.py
"""

from __future__ import annotations

import ast
import operator
import sys
from typing import Any

import pocket_tracing  # noqa: F401 - the only line about tracing
from pocket_trainer import Conversation, Policy, Trainer

OPERATORS: dict[type, Any] = {ast.Add: operator.add, ast.Mult: operator.mul, ast.Div: operator.floordiv}


def calculate(expression: str) -> int:
    """Compute an expression of two numbers."""
    parsed: Any = ast.parse(expression, mode="eval").body
    result: int = OPERATORS[type(parsed.op)](parsed.left.value, parsed.right.value)
    return result


def correct(conversation: Conversation) -> float:
    """Reward the right answer."""
    return float(conversation.messages[-1]["content"] == conversation.answer)


def short(conversation: Conversation) -> float:
    """Reward a conversation of few messages."""
    return 0.1 * (len(conversation.messages) == 2)


def main(steps: int) -> None:
    """Train, and print what each step has given."""
    questions = {"6 * 7": "42", "13 + 29": "42", "1 / 0": "nothing"}
    rewards = {"correct": correct, "short": short}
    trainer = Trainer(Policy(seed=4), questions, {"calculate": calculate}, rewards)
    for _ in range(steps):
        conversations = trainer.train_step()
        total = sum(sum(conversation.rewards.values()) for conversation in conversations)
        chance = trainer.policy.probabilities()["calculate"]
        print(f"step {trainer.step}: reward {total / len(conversations):.3f}, uses the tool {chance:.3f}")


if __name__ == "__main__":
    main(steps=int(sys.argv[1]) if len(sys.argv) > 1 else 5)
