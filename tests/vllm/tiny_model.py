"""Make the model of the tests with vLLM: a Qwen2 with random weights and the demo's tokenizer."""

from __future__ import annotations

from pathlib import Path

MAX_TOKENS = 1024
"""Tokens of the longest context."""

OF_ENGINE = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512}
"""Arguments of an engine in a test's process."""


def make_tiny_model(folder: Path) -> Path:
    """Save a model and its tokenizer in ``folder``, and return the folder.

    The weights are equal in each call. The global random state is as it was.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from otel_rollout_demo.tokenizer import load_tokenizer

    tokenizer = load_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # of 32 dimensions each: vLLM's kernels for CPUs take no fewer
        num_key_value_heads=1,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder
