"""Write GSM8K for verl's tool agent: ``python prepare_gsm8k.py [DIRECTORY]``.

The directory gets ``train.parquet`` and ``test.parquet``.

In addition to the columns of all verl datasets, each row has the name of the agent loop (``agent_name``), the
row's index in the dataset (``extra_info.index``, in a trace ``sample_index``) and the arguments with which
the tool is created (``tools_kwargs``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

SYSTEM = (
    "You are a math expert. Reason step by step. Before you answer, check your result with the tool "
    "check_answer, and correct it if the tool says that it is wrong. End with the result after ####."
)


def row(example: dict[str, str], index: int, split: str) -> dict[str, Any]:
    """Return a row for verl of an example with ``question`` and worked ``answer``."""
    result = example["answer"].rpartition("####")[2].strip().replace(",", "")
    return {
        "data_source": "openai/gsm8k",  # by which verl finds its reward function
        "agent_name": "tool_agent",
        "prompt": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": example["question"]},
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": result},
        "extra_info": {
            "split": split,
            "index": index,
            "answer": example["answer"],
            "question": example["question"],
            "need_tools_kwargs": True,
            "tools_kwargs": {"check_answer": {"create_kwargs": {"ground_truth": result}}},
        },
    }


def main() -> None:
    """Download the dataset and write it."""
    from datasets import load_dataset

    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "~/data/gsm8k").expanduser()
    directory.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        examples = load_dataset("openai/gsm8k", "main", split=split)
        made = examples.map(
            lambda example, index, split=split: row(example, index, split),
            with_indices=True,
            remove_columns=examples.column_names,
        )
        made.to_parquet(str(directory / f"{split}.parquet"))
        print(f"{len(made)} rows in {directory / split}.parquet")


if __name__ == "__main__":
    main()
