"""Train the demo's tokenizer: ``python -m otel_rollout_demo.train_tokenizer``.

The tokenizer is a byte-level BPE of the problems, their solutions and conversations of the scripted model.
Training is deterministic: files under ``data/tokenizer`` change only if these texts change.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from otel_rollout_demo.dataset import Row, load
from otel_rollout_demo.policy import ScriptedPolicy
from otel_rollout_demo.tokenizer import TOKENIZER_DIR
from otel_rollout_demo.tools import CALCULATOR_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VOCAB_SIZE: Final = 1024
END_OF_TEXT, TURN_BEGINS, TURN_ENDS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TOOL_MARKS: Final = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def corpus() -> Iterator[str]:
    """Yield the texts to train on."""
    template = (TOKENIZER_DIR / "chat_template.jinja").read_text(encoding="utf-8")
    yield template
    yield json.dumps(CALCULATOR_SCHEMA)
    rows = [*load("train"), *load("validation")]
    for row in rows:
        yield from (message["content"] for message in row["prompt"])
        yield row["extra_info"]["answer"]
        yield from _first_turns(row, ScriptedPolicy(rows, seed=0))


def _first_turns(row: Row, policy: ScriptedPolicy) -> Iterator[str]:
    prompt = f"{TURN_BEGINS}user\n{row['extra_info']['question']}{TURN_ENDS}\n"
    for n in range(8):
        yield policy.reply(prompt, request_id=f"tokenizer-{n}", version=0, temperature=1.0)


def train(directory: Path = TOKENIZER_DIR) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``.

    The chat template is written by hand.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=2,
        special_tokens=[END_OF_TEXT, TURN_BEGINS, TURN_ENDS, *TOOL_MARKS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    # Each mark is one token but no special token, so that decoding without special tokens keeps the mark.
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in TOOL_MARKS])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": TURN_ENDS,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [TURN_BEGINS],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    train()
