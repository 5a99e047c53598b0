"""verl's agent loop worker in this process, with objects in the place of Ray's actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verl.experimental.agent_loop import AgentLoopWorker
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from tests.verl.script import POLICY_VERSION, Script


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
    """Has one server."""

    def __init__(self, server: Any) -> None:
        self.server = server

    async def require_acquire_fields(self) -> list[str]:
        return []

    async def require_release_fields(self) -> list[str]:
        return []

    async def acquire_server(self, request_id: str) -> tuple[str, Any]:
        return "server", self.server

    def release_server(self, server_id: str) -> None:
        pass


class Engine:
    """Says what the script says."""

    def __init__(self) -> None:
        self.script = Script()

    async def generate(self, request_id: str, prompt_ids: list[int], **rest: Any) -> TokenOutput:
        tokens, reason = self.script.reply(prompt_ids)
        return TokenOutput(
            token_ids=tokens,
            log_probs=[-0.5] * len(tokens),
            stop_reason=reason,
            num_preempted=1,
            extra_fields={"global_steps": POLICY_VERSION, "num_cached_tokens": 3},
        )


class Rewards:
    """Rewards every answer with a half."""

    async def compute_score(self, data: Any) -> dict[str, Any]:
        return {"reward_score": 0.5, "reward_extra_info": {"acc": True, "answer": "42", "list": [1, 2]}}


def worker(config: Any, *, partial: bool = False) -> AgentLoopWorker:
    """A real worker; ``partial`` gives it the client that resumes aborted requests."""
    client_class = FullyAsyncLLMServerClient if partial else LLMServerClient
    client = client_class(config, Remote(Balancer(Remote(Engine()))))
    return AgentLoopWorker(config, client, None, [Remote(Rewards())])
