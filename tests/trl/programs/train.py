"""Train in each of TRL's ways of generation: ``python -m tests.trl.programs.train DIRECTORY [NAME ...]``.

The names are those of the functions below; without names, all of them run in turn. The completions table of
:func:`with_tools` is kept from before its evaluation. ``results.json`` holds what the trainers logged first.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

import otel_rollout
from otel_rollout.integrations.trl import sample
from tests.trl import script, scripted_model

DIRECTORY = Path(sys.argv[1])
COMMON: dict[str, Any] = {
    "num_generations": script.SIBLINGS,
    "per_device_train_batch_size": 8,
    "max_completion_length": 200,
    "shuffle_dataset": False,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
}


def messages(*texts: str, **columns: list[Any]) -> Dataset:
    """Return a data set of conversations that the user begins."""
    prompts = [[{"role": "user", "content": text}] for text in texts]
    return Dataset.from_dict({"prompt": prompts, **columns})


def train(class_: Any, config: Any, name: str, **arguments: Any) -> Any:
    """Train; return the trainer."""
    options = {**COMMON, "output_dir": str(DIRECTORY / name), **arguments.pop("options", {})}
    trainer = class_(
        model=scripted_model.model(script.reply),
        processing_class=scripted_model.tokenizer(),
        args=config(**options),
        **arguments,
    )
    trainer.train()
    return trainer


def with_tools() -> Any:
    """Train two steps of two prompts with tools, and evaluate."""
    trainer = train(
        GRPOTrainer,
        GRPOConfig,
        "tools",
        tools=script.TOOLS,
        reward_funcs=[script.done, script.length],
        train_dataset=messages("Add.", "Break.", "Go on.", "Say it."),
        eval_dataset=messages("Evaluate.", "Add."),
        options={
            "max_steps": 2,
            "reward_weights": [1.0, 0.5],
            "mask_truncated_completions": True,
            "log_completions": True,
            "num_generations_eval": 2,
            "per_device_eval_batch_size": 2,
        },
    )
    if trainer.accelerator.is_main_process:
        shutil.copytree(DIRECTORY / "tools" / "completions", DIRECTORY / "completions")
    trainer.evaluate()
    return trainer


def with_environments() -> Any:
    """Train a step of two prompts, each in an environment of its own."""
    return train(
        GRPOTrainer,
        GRPOConfig,
        "environments",
        environment_factory={"counter": script.Counter, "waiting": script.Waiting},
        reward_funcs=[script.done],
        train_dataset=messages("Count.", "Wait.", environment=["counter", "waiting"]),
        options={"max_steps": 1},
    )


def with_rollout_function() -> Any:
    """Train a step with a function that generates."""
    words = scripted_model.tokenizer()

    @otel_rollout.rollout_trace_op
    def play(prompt: Any) -> list[int]:
        return list(words("a b c")["input_ids"])

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        completions = []
        for index, prompt in enumerate(prompts):
            with sample(index):
                completions.append([*play(prompt), words.eos_token_id])
        return {
            "prompt_ids": [words("Play.")["input_ids"] for _ in prompts],
            "completion_ids": completions,
            "logprobs": [[-0.5] * len(ids) for ids in completions],
            "env_mask": [[1] * (len(ids) - 2) + [0, 1] for ids in completions],
        }

    return train(
        GRPOTrainer,
        GRPOConfig,
        "rollout_func",
        rollout_func=rollout,
        reward_funcs=[script.length],
        train_dataset=messages("Play."),
        options={"max_steps": 1, "per_device_train_batch_size": 4},
    )


def with_rloo() -> Any:
    """Train two generation batches of one step by RLOO, with prompts that are texts."""
    return train(
        RLOOTrainer,
        RLOOConfig,
        "rloo",
        reward_funcs=[script.text_length],
        train_dataset=Dataset.from_dict({"prompt": ["One", "Two"]}),
        options={
            "max_steps": 1,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 1,
            "beta": 0.0,
        },
    )


def with_subclass() -> Any:
    """Train a step with a trainer that is derived from GRPOTrainer."""
    return train(
        GMPOTrainer,
        GMPOConfig,
        "gmpo",
        reward_funcs=[script.length],
        train_dataset=messages("Hello."),
        options={"max_steps": 1, "per_device_train_batch_size": 4},
    )


def with_broken_reward() -> Any:
    """Train until a reward function raises."""
    try:
        train(
            GRPOTrainer,
            GRPOConfig,
            "broken",
            reward_funcs=[script.length, script.broken],
            train_dataset=messages("Hello."),
            options={"max_steps": 1, "per_device_train_batch_size": 4},
        )
    except ArithmeticError as error:
        return error
    raise AssertionError("the reward function's exception did not pass")


def main() -> None:
    """Run each trainer, in this order: their numbers are part of their prompts' identity."""
    runs: list[Callable[[], Any]] = [
        with_tools,
        with_environments,
        with_rollout_function,
        with_rloo,
        with_subclass,
        with_broken_reward,
    ]
    results, names = {}, sys.argv[2:]
    for run in runs:
        if names and run.__name__ not in names:
            continue
        trained = run()
        is_error = isinstance(trained, Exception)
        results[run.__name__] = str(trained) if is_error else trained.state.log_history[0]
    (DIRECTORY / "results.json").write_text(json.dumps(results, default=str))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
