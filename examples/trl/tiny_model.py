"""Make a tiny model that calls a calculator: ``python examples/trl/tiny_model.py FOLDER``.

The model takes the place of a download. It is a Qwen2 of 0.1 M random parameters, trained for some seconds on
solved problems. Then it calls the calculator most of the time, and makes mistakes. FOLDER is a model for
``grpo_calculator.py --model FOLDER``.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import torch
from grpo_calculator import Message, calculator, problems
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl.chat_template_utils import qwen2_5_chat_template, qwen2_5_training_chat_template

MARKS: Final = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOOL_MARKS: Final = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
VOCABULARY: Final = 512
STEPS: Final = 220
"""Training steps: enough for most calls, too few for perfect ones."""
BATCH: Final = 16


def solved(prompt: list[Message], answer: str) -> list[Message]:
    """Return a conversation in which the calculator solves a problem."""
    expression = prompt[-1]["content"].removeprefix("What is ").removesuffix("?")
    try:
        result = calculator(expression)
    except ZeroDivisionError as error:
        result = str({"error": str(error)})  # TRL tells the model of an error in these words
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": expression}}}
    return [
        *prompt,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "calculator", "content": result},
        {"role": "assistant", "content": answer},
    ]


def make_tokenizer(conversations: list[list[Message]]) -> Any:
    """Train a byte-level BPE on the conversations; its chat template is Qwen 2.5's."""
    bpe = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.Sequence([digits, words]), decoders.ByteLevel()
    untrained = with_template(bpe)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=MARKS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (
        untrained.apply_chat_template(turns, tools=[calculator], tokenize=False) for turns in conversations
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens(TOOL_MARKS)
    return with_template(bpe)


def with_template(bpe: Tokenizer) -> Any:
    """Return the tokenizer of a chat model; its template tells which tokens the assistant writes."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token=MARKS[0], eos_token=MARKS[2])
    tokenizer.chat_template = qwen2_5_training_chat_template
    return tokenizer


def make_model(tokenizer: Any) -> Any:
    """Return a model with random weights."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def teach(model: Any, tokenizer: Any, conversations: list[list[Message]]) -> None:
    """Train the model to write the assistant's turns of the conversations."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for begin in range(0, len(conversations), BATCH):
        if begin % (20 * BATCH) == 0:
            print(f"teaching the tiny model: {begin} of {len(conversations)} problems", flush=True)
        batch = tokenizer.apply_chat_template(
            conversations[begin : begin + BATCH],
            tools=[calculator],
            return_dict=True,
            return_assistant_tokens_mask=True,
            padding=True,
            return_tensors="pt",
        )
        labels = batch["input_ids"].masked_fill(batch.pop("assistant_masks") == 0, -100)
        model(**batch, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def main(folder: str) -> None:
    """Make tokenizer and model, and save them."""
    torch.manual_seed(0)
    conversations = [solved(row["prompt"], row["answer"]) for row in problems(STEPS * BATCH, seed=0)]
    tokenizer = make_tokenizer(conversations[:100])
    model = make_model(tokenizer)
    teach(model, tokenizer, conversations)
    tokenizer.chat_template = qwen2_5_chat_template
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    print(f"{folder}: a model of {model.num_parameters():,} parameters")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Name a folder: python examples/trl/tiny_model.py FOLDER")
    main(sys.argv[1])
