"""Train two steps by GRPO in each of the processes that a launcher starts; nothing here mentions tracing.

Arguments: the output directory, and "kill" to have the process of rank 1 kill itself in its second step.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import warnings
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from tests.trl import scripted_model


def reply(text: str, row: int) -> str:
    """Return a reply that differs in each row of the batch."""
    question = text.rpartition("question ")[2][:1]
    return f"answer {question} of rank {os.environ['RANK']} row {row}"


def length(completions: list[Any], **_: Any) -> list[float]:
    """Reward the rows differently; on rank 1, perhaps end the process in the second step."""
    if "kill" in sys.argv and os.environ["RANK"] == "1" and next(_calls) > 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return [float(completion[-1]["content"][-1]) for completion in completions]


_calls = itertools.count()


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    prompts = [[{"role": "user", "content": f"question {number}"}] for number in range(8)]
    trainer = GRPOTrainer(
        model=scripted_model.model(reply),
        processing_class=scripted_model.tokenizer(),
        reward_funcs=length,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        args=GRPOConfig(
            output_dir=sys.argv[1],
            run_name="two-processes",
            max_steps=2,
            per_device_train_batch_size=6,
            num_generations=4,
            max_completion_length=16,
            log_completions=True,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
