"""A tiny random Qwen2 that trains as any model does, and that generates what a script says.

While the model generates, a logits processor leaves one token possible: the next one of the script's reply.
Everything else is real: TRL's generation, parsing and tools, the loss, and the gradients of random weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from trl.chat_template_utils import qwen2_5_chat_template

from otel_rollout_demo.tokenizer import TOKENIZER_DIR
from tests.trl.script import ENDLESS

Script = Callable[[str, int], str]
"""Text of the conversation so far, and row in the batch → reply."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Return the demo's tokenizer with a chat template whose tool calls TRL can parse."""
    made = PreTrainedTokenizerFast.from_pretrained(str(TOKENIZER_DIR), padding_side="left")
    made.chat_template = qwen2_5_chat_template
    return made


def model(script: Script) -> ScriptedModel:
    """Return a model of about 50,000 random weights that follows the script."""
    words = tokenizer()
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    made = ScriptedModel(config)
    made.script, made.words = script, words
    return made


class ScriptedModel(Qwen2ForCausalLM):
    """A model whose samples are the replies of a script."""

    script: Script
    words: PreTrainedTokenizerFast

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate with the script's replies to these prompts."""
        ids, mask = kwargs["input_ids"], kwargs["attention_mask"]
        replies = []
        for row, (prompt, seen) in enumerate(zip(ids, mask.bool(), strict=True)):
            reply = self.script(self.words.decode(prompt[seen]), row)
            tokens = self.words(reply.removesuffix(ENDLESS))["input_ids"]
            replies.append((tokens, tokens[-1] if reply.endswith(ENDLESS) else self.words.eos_token_id))
        scripted = LogitsProcessorList([_OneToken(replies, ids.shape[1])])
        return super().generate(*args, **kwargs, logits_processor=scripted)


class _OneToken(LogitsProcessor):
    """Leave the next token of each row's reply; after the reply, its last token for ever."""

    def __init__(self, replies: list[tuple[list[int], int]], prompt_length: int) -> None:
        self._replies = replies
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        position = input_ids.shape[1] - self._prompt_length
        left = torch.full_like(scores, float("-inf"))
        for row, (tokens, last) in enumerate(self._replies):
            left[row, tokens[position] if position < len(tokens) else last] = 0.0
        return left
