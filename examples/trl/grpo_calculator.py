"""Train a model by GRPO to solve arithmetic with a calculator.

    python examples/trl/grpo_calculator.py --model Qwen/Qwen2.5-0.5B-Instruct

Every chat model that calls tools will do, also the tiny one that ``tiny_model.py`` makes.
"""

from __future__ import annotations

import argparse
import operator
import random
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

Message = dict[str, Any]
SYSTEM = "Solve the problem with the calculator. Answer with the number alone."
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def calculator(expression: str) -> str:
    """Calculate the value of an expression.

    Args:
        expression: Two numbers with +, -, * or / between them, and spaces, for example 3 + 4.

    Returns:
        The value.
    """
    first, sign, second = expression.split()
    return f"{OPERATIONS[sign](int(first), int(second)):.3g}"


def correct(completions: list[list[Message]], answer: list[str], **kwargs: Any) -> list[float]:
    """Reward the right answer in the last message."""
    return [
        float(turns[-1]["content"].strip() == right) for turns, right in zip(completions, answer, strict=True)
    ]


def calculated(completions: list[list[Message]], **kwargs: Any) -> list[float]:
    """Reward a call of the calculator that it could answer."""
    results = [[turn["content"] for turn in turns if turn["role"] == "tool"] for turns in completions]
    return [float(any("error" not in result for result in of_one)) for of_one in results]


def problems(count: int, seed: int) -> Dataset:
    """Return problems as conversations, with their answers."""
    chances = random.Random(seed)  # noqa: S311 - an order of problems, not a secret
    rows = []
    for _ in range(count):
        first, sign, second = chances.randrange(10), chances.choice(list(OPERATIONS)), chances.randrange(5)
        question = {"role": "user", "content": f"What is {first} {sign} {second}?"}
        undefined = sign == "/" and second == 0
        answer = "undefined" if undefined else calculator(f"{first} {sign} {second}")
        rows.append({"prompt": [{"role": "system", "content": SYSTEM}, question], "answer": answer})
    return Dataset.from_list(rows)


def main() -> None:
    """Train, and save the model."""
    parser = argparse.ArgumentParser(description="GRPO with a calculator")
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct")
    parser.add_argument("--output", default="grpo-calculator", help="folder of checkpoints and completions")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--report-to", default="none", help="mlflow, wandb, trackio, …")
    options = parser.parse_args()
    config = GRPOConfig(
        output_dir=options.output,
        max_steps=options.steps,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=256,
        max_tool_calling_iterations=3,
        learning_rate=1e-3,
        reward_weights=[1.0, 0.5],
        bf16=torch.cuda.is_available(),
        logging_steps=1,
        log_completions=True,
        num_completions_to_print=1,
        report_to=options.report_to,
    )
    trainer = GRPOTrainer(
        model=options.model,
        args=config,
        train_dataset=problems(64, seed=17),
        reward_funcs=[correct, calculated],
        tools=[calculator],
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
