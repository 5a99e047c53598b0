"""verl's legacy trainer with two agent-loop workers, in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop import AgentLoopManager, AgentLoopWorker
from verl.workers.rollout.llm_server import LLMServerClient

from tests.verl.configuration import configuration
from tests.verl.local import Balancer, Remote
from tests.verl.programs.training_steps import OVERRIDES, Saved, Server, config_of, run_legacy


class LocalServer(Server):
    """A server whose rewards are computed in the event loop that asks for them; each step has another."""

    def __init__(self, config: Any, *, is_numbered: bool) -> None:
        super().__init__(config)
        self.is_numbered = is_numbered
        self.reward_manager.loop.close()
        asyncio.set_event_loop(None)

    def number(self, prompt_ids: list[int]) -> int:
        return super().number(prompt_ids) if self.is_numbered else len(prompt_ids)

    async def compute_score(self, data: Any) -> dict[str, Any]:
        self.reward_manager.loop = asyncio.get_running_loop()
        found: dict[str, Any] = await super().compute_score(data)
        return found


def train(directory: Path, name: str, *overrides: str, is_numbered: bool = True) -> Saved:
    """Run the legacy trainer's steps; return what it had before each update.

    Args:
        directory: gets the configuration.
        name: the trainer's name in :func:`run_legacy`.
        overrides: of the configuration.
        is_numbered: whether siblings get different replies. Threads of tools change the order of requests, so
            two runs have equal batches only without.
    """
    own = config_of(name, configuration(directory, [*OVERRIDES, "trainer.logger=[]", *overrides]))
    server: Any = Remote(LocalServer(own, is_numbered=is_numbered))
    client = LLMServerClient(own, Remote(Balancer(server)))
    manager = AgentLoopManager.__new__(AgentLoopManager)
    manager.config = own
    handles = None if name == "colocated" else [server]
    manager.agent_loop_workers = [Remote(AgentLoopWorker(own, client, None, handles)) for _ in range(2)]
    saved = Saved()
    run_legacy(name, own, manager, server, saved)
    return saved
