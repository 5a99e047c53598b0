"""Serve models by token ids, as verl's vLLM and SGLang servers do.

Each server runs as one Ray actor. ``ScriptedServer`` answers from ``policy.py`` in milliseconds;
``TransformersServer`` samples from a causal language model.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from otel_rollout import rollout_trace_op
from otel_rollout_demo.dataset import load
from otel_rollout_demo.policy import ScriptedPolicy
from otel_rollout_demo.tokenizer import ChatTokenizer, load_tokenizer


@dataclass(frozen=True)
class TokenOutput:
    """A generation."""

    token_ids: list[int]
    stop_reason: str  # "completed", or "aborted" if the context was full
    log_probs: list[float] | None = None  # one per token, if the model computes them
    extra_fields: dict[str, Any] = field(default_factory=dict)  # global_steps: the weights' version


class InferenceServer(Protocol):
    """Methods that the driver and the agent loops call through a Ray actor handle."""

    async def ready(self) -> str:
        """Wait until the server can answer requests, and return the model's name."""

    async def update_weights(self, version: int) -> None:
        """Load the weights of training step ``version``; step 0 has the initial weights."""

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> TokenOutput:
        """Continue ``prompt_ids``. All turns of a trajectory have one ``request_id``."""


_CALL_S: Final = 0.005
"""Fixed part of a simulated call's duration in seconds."""
_TOKEN_S: Final = 0.0004
"""Seconds that each token adds to a simulated call."""
_MAX_CALL_S: Final = 0.040
"""Maximum duration of a simulated call in seconds."""


class ScriptedServer:
    """Serve the scripted model, with any number of requests at a time."""

    def __init__(self, seed: int) -> None:
        self._chat = ChatTokenizer(load_tokenizer())
        self._policy = ScriptedPolicy([*load("train"), *load("validation")], seed)
        self._version = 0

    async def ready(self) -> str:
        """Return the model's name."""
        return "scripted"

    async def update_weights(self, version: int) -> None:
        """Make fewer mistakes from now on."""
        self._version = version

    @rollout_trace_op
    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> TokenOutput:
        """Return the scripted model's next turn, cut off at ``max_tokens``."""
        version = self._version
        text = self._policy.reply(
            self._chat.decode(prompt_ids, keep_special=True),
            request_id=request_id,
            version=version,
            temperature=sampling_params["temperature"],
        )
        ids = [*self._chat.encode(text), self._chat.eos_token_id][: sampling_params["max_tokens"]]
        await asyncio.sleep(min(_CALL_S + _TOKEN_S * len(ids), _MAX_CALL_S))
        return TokenOutput(ids, stop_reason="completed", extra_fields={"global_steps": version})


class TransformersServer:
    """Serve a causal language model, one request at a time.

    The weights do not change: this is a rollout without training.
    """

    def __init__(self, model: str, seed: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.manual_seed(seed)
        self._name = model
        self._tokenizer = load_tokenizer(model)
        self._model = AutoModelForCausalLM.from_pretrained(model)
        self._model.eval()
        self._context = getattr(self._model.config, "max_position_embeddings", None) or 4096
        self._version = 0
        self._one_at_a_time = asyncio.Lock()

    async def ready(self) -> str:
        """Return the model's name."""
        return self._name

    async def update_weights(self, version: int) -> None:
        """Note the version; the weights are not trained."""
        self._version = version

    @rollout_trace_op
    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> TokenOutput:
        """Sample the next turn."""
        extra = {"global_steps": self._version}
        room = min(sampling_params["max_tokens"], self._context - len(prompt_ids))
        if room < 1:
            return TokenOutput([], stop_reason="aborted", extra_fields=extra)
        async with self._one_at_a_time:
            ids, log_probs = await asyncio.to_thread(self._sample, prompt_ids, room, sampling_params)
        return TokenOutput(ids, stop_reason="completed", log_probs=log_probs, extra_fields=extra)

    def _sample(
        self, prompt_ids: list[int], max_new_tokens: int, sampling_params: dict[str, Any]
    ) -> tuple[list[int], list[float]]:
        import torch

        greedy = sampling_params["temperature"] <= 0
        how = {"temperature": sampling_params["temperature"], "top_p": sampling_params["top_p"], "top_k": 0}
        prompt = torch.tensor([prompt_ids], device=self._model.device)
        with torch.inference_mode():
            output = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_new_tokens,
                eos_token_id=self._stop_ids(),
                pad_token_id=self._tokenizer.pad_token_id or self._tokenizer.eos_token_id,
                do_sample=not greedy,
                **({} if greedy else how),
                return_dict_in_generate=True,
                output_logits=True,
            )
            ids = output.sequences[0, len(prompt_ids) :]
            log_probs = torch.log_softmax(torch.cat(output.logits).float(), dim=-1)
            chosen = log_probs.gather(1, ids[:, None])[:, 0]
        return ids.tolist(), chosen.tolist()

    def _stop_ids(self) -> list[int]:
        configured = self._model.generation_config.eos_token_id
        known = configured if isinstance(configured, list) else [configured]
        return sorted({self._tokenizer.eos_token_id, *(id_ for id_ in known if id_ is not None)})
