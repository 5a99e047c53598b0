"""Make a tiny model that calls a calculator: ``python examples/trl/tiny_model.py FOLDER``.

The model takes the place of a download. It is a Qwen2 of 0.2 M random parameters, trained for a minute on
solved problems. The training checks that it calls the calculator and answers at temperature 0. At
temperature 1 it makes mistakes. FOLDER is then a model for ``grpo_calculator.py --model FOLDER`` and for
an engine.
"""

from __future__ import annotations

import random
import sys
from typing import Any, Final

import torch
from grpo_calculator import SYSTEM, Message, calculator, problems
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import get_json_schema
from trl.chat_template_utils import qwen2_5_chat_template, qwen2_5_training_chat_template

MARKS: Final = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOOL_MARKS: Final = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
VOCABULARY: Final = 512
STEPS: Final = 600
"""Training steps at most; the training of a model ends when it knows enough, after 300 or more."""
ATTEMPTS: Final = 5
"""Models that are tried: with two of five random weights, 600 steps were not enough."""
BATCH: Final = 8
LEARNING_RATE: Final = 2e-3
WARM_UP: Final = 20
"""Steps in which the learning rate rises; after them it falls."""
OTHER_RESULTS: Final = 0.5
"""Share of the lessons whose result is any number."""
EXAM_EVERY: Final = 10
EXAM_LOSS: Final = 0.03
"""A model with a higher loss takes no exam: it would fail."""
SURE: Final = 0.6
"""Least probability of each token in an exam: over one half, so that temperature 0 always chooses it."""


def openai_form() -> dict[str, Any]:
    """Describe the calculator as an engine's clients do: OpenAI's API has no field for what it returns."""
    schema = get_json_schema(calculator)
    function = {name: value for name, value in schema["function"].items() if name != "return"}
    return {"type": "function", "function": function}


FORMS: Final = [calculator, openai_form()]
"""Descriptions in prompts: TRL's has the result too. A model that knows only one fails with the other."""


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


def lessons(seed: int) -> list[list[Message]]:
    """Return solved problems, half of them with any number as the result.

    There are few problems: a model learns their results by heart, some of them wrongly, and copies none.
    """
    chances = random.Random(seed)  # noqa: S311 - numbers of a lesson, not a secret
    found = []
    for row in problems(STEPS * BATCH, seed=seed):
        turns = solved(row["prompt"], row["answer"])
        if chances.random() < OTHER_RESULTS:
            number = str(chances.choice([chances.randrange(100), chances.randrange(1000) / 100]))
            turns[-2]["content"] = turns[-1]["content"] = number
        found.append(turns)
    return found


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
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def tokens(tokenizer: Any, conversations: list[list[Message]], tool: Any) -> tuple[Any, Any]:
    """Return conversations as a batch, and where in it the assistant's tokens are."""
    batch = tokenizer.apply_chat_template(
        conversations,
        tools=[tool],
        return_dict=True,
        return_assistant_tokens_mask=True,
        padding=True,
        return_tensors="pt",
    )
    return batch, batch.pop("assistant_masks").bool()


def teach(model: Any, tokenizer: Any, conversations: list[list[Message]]) -> bool:
    """Train the model to write the assistant's turns; return whether it passed its exam."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP) * (1 - step / STEPS)
    )
    questions, doubtful = exam(), []
    for step in range(STEPS):
        lesson = conversations[step * BATCH : (step + 1) * BATCH] + doubtful[: BATCH // 2]
        batch, written = tokens(tokenizer, lesson, FORMS[step % len(FORMS)])
        loss = model(**batch, labels=batch["input_ids"].masked_fill(~written, -100)).loss
        if step % EXAM_EVERY == 0:
            print(f"teaching the tiny model: step {step}, loss {loss.item():.3f}", flush=True)
            if doubtful or loss < EXAM_LOSS:
                doubtful = [turns for tool in FORMS for turns in unsure(model, tokenizer, questions, tool)]
                if not doubtful:
                    return True
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return False


def exam() -> list[list[Message]]:
    """Return all sums and products, solved."""
    expressions = [f"{first} {sign} {second}" for first in range(10) for sign in "+*" for second in range(5)]
    return [
        solved(
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"What is {expression}?"}],
            calculator(expression),
        )
        for expression in expressions
    ]


def unsure(model: Any, tokenizer: Any, conversations: list[list[Message]], tool: Any) -> list[list[Message]]:
    """Return the conversations that the model would perhaps not continue so at temperature 0."""
    batch, written = tokens(tokenizer, conversations, tool)
    with torch.no_grad():
        probabilities = model(**batch).logits[:, :-1].softmax(-1)
    own = probabilities.gather(-1, batch["input_ids"][:, 1:, None]).squeeze(-1)
    failed = ((own < SURE) & written[:, 1:]).any(dim=1)
    return [turns for turns, one in zip(conversations, failed.tolist(), strict=True) if one]


def main(folder: str, seed: int = 0) -> None:
    """Make tokenizer and model, and save them."""
    torch.manual_seed(seed)
    conversations = lessons(seed)
    tokenizer = make_tokenizer(conversations[:100])
    for _ in range(ATTEMPTS):
        model = make_model(tokenizer)
        if teach(model, tokenizer, conversations):
            break
        print("the tiny model did not pass its exam; another begins", flush=True)
    else:
        sys.exit(f"{ATTEMPTS} tiny models have not learned to call the calculator in {STEPS} steps each.")
    tokenizer.chat_template = qwen2_5_chat_template
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    print(f"{folder}: a model of {model.num_parameters():,} parameters")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Name a folder: python examples/trl/tiny_model.py FOLDER")
    main(sys.argv[1])
