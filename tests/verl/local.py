"""verl's agent-loop worker in this process, with objects instead of Ray's actors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from verl.experimental.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from tests.verl.script import POLICY_VERSION, Script, rows

GENERATE = "LLMServerClient.generate"
"""Name of a model call's span."""


class Remote:
    """An object whose methods are called like an actor's."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        return _RemoteMethod(getattr(self.target, name))


class _RemoteMethod:
    def __init__(self, method: Callable[..., Any]) -> None:
        self.remote = method


class Balancer:
    """A load balancer with one server."""

    def __init__(self, server: Any) -> None:
        self.server = server

    async def require_acquire_fields(self) -> list[str]:
        return []

    async def require_release_fields(self) -> list[str]:
        return []

    async def acquire_server(self, request_id: str) -> Any:
        return "server", self.server

    def release_server(self, server_id: str) -> None:
        pass


class Engine:
    """An inference engine that answers by the script."""

    def __init__(self) -> None:
        self.script = Script()
        self.is_waiting = asyncio.Event()
        self.request_ids: list[str] = []

    async def generate(self, request_id: str, prompt_ids: list[int], **rest: Any) -> TokenOutput:
        self.request_ids.append(request_id)
        reply = self.script.reply(prompt_ids)
        if reply is None:
            self.is_waiting.set()
            await asyncio.Event().wait()
        tokens, reason = reply
        return TokenOutput(
            token_ids=tokens,
            log_probs=[-0.5] * len(tokens),
            stop_reason=reason,
            num_preempted=1,
            extra_fields={"global_steps": POLICY_VERSION, "num_cached_tokens": 3},
        )


class UpdatedEngine(Engine):
    """An inference engine whose weights are newer after each answer that it interrupts; it can fail."""

    def __init__(self, fails_after: int | None = None) -> None:
        super().__init__()
        self.version = POLICY_VERSION
        self.fails_after = fails_after

    async def generate(self, request_id: str, prompt_ids: list[int], **rest: Any) -> TokenOutput:
        if len(self.request_ids) == self.fails_after:
            raise RuntimeError("the engine died")
        output = await super().generate(request_id, prompt_ids, **rest)
        output.extra_fields["global_steps"] = self.version
        self.version += output.stop_reason == "aborted"
        return output


class Rewards:
    """A reward worker that gives every answer 0.5."""

    async def compute_score(self, data: Any) -> dict[str, Any]:
        return {"reward_score": 0.5, "reward_extra_info": {"acc": True, "answer": "42", "list": [1, 2]}}


def worker(config: Any, engine: Engine | None = None, *, partial: bool = False) -> AgentLoopWorker:
    """Return a real worker; with ``partial`` its client resumes aborted requests."""
    server = Remote(engine or Engine())
    balancer, rewards = Remote(Balancer(server)), [Remote(Rewards())]
    client = LLMServerClient
    if partial:
        from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient as client
    return AgentLoopWorker(config, client(config, balancer), None, rewards)


def batch(indices: list[int], step: int, siblings: int, *, validate: bool = False) -> DataProto:
    """Return rows as the legacy trainer gives them to a worker, each once per sibling."""
    samples = rows(indices, step, validate, False)
    columns = {name: np.empty(len(samples), dtype=object) for name in samples[0]}
    for name, column in columns.items():
        column[:] = [row[name] for row in samples]
    meta = {"global_steps": step, "validate": validate}
    return DataProto(non_tensor_batch=columns, meta_info=meta).repeat(siblings, interleave=True)
