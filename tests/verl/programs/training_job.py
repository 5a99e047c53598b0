"""Run verl's job without training: ``python -m … DIRECTORY [OVERRIDE …]``.

Launcher, agent loops, tools and rewards are verl's; the engine is scripted. Each trainer has two steps and a
validation, a trajectory that is cancelled while the engine works on it, a step in which the tokenizer of
token2text raises, and one with twice as many groups. One of the tools always raises. What the trainers got is
written to ``DIRECTORY/outputs.json``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import ray
from omegaconf import OmegaConf
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.trainer.main_ppo import run_ppo
from verl.workers.rollout.replica import TokenOutput

from otel_rollout import rollout_trace_op
from tests.verl.configuration import configuration
from tests.verl.script import POLICY_VERSION, QUESTIONS, UNANSWERED, Script, rows

DEADLINE = 300.0


class Server(RewardLoopWorker):
    """Replace an engine's server, and compute rewards, which saves a process."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.script = Script()
        self.unanswered = 0

    async def waiting(self) -> int:
        """Return how many requests have come that are never answered."""
        return self.unanswered

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **media: Any
    ) -> TokenOutput:
        reply = await self.forward(prompt_ids)
        if reply is None:
            self.unanswered += 1
            await asyncio.Event().wait()
        assert reply is not None
        tokens, reason = reply
        return TokenOutput(
            token_ids=tokens,
            log_probs=[-0.5] * len(tokens),
            stop_reason=reason,
            num_preempted=1,
            extra_fields={"global_steps": POLICY_VERSION, "num_cached_tokens": 3},
        )

    @rollout_trace_op(name="engine.forward")
    async def forward(self, prompt_ids: list[int]) -> tuple[list[int], str] | None:
        return self.script.reply(prompt_ids)


def more_rows(step: int) -> list[dict[str, Any]]:
    """Return rows for twice as many groups, with each question in two rows."""
    again = [{**row, "index": row["index"] + 10, "uid": row["uid"] + "+"} for row in _asked(step)]
    return [*_asked(step), *again]


def _asked(step: int) -> list[dict[str, Any]]:
    return rows(list(QUESTIONS), step, False, False)


def break_tokenizer(worker: Any) -> None:
    """Have the tokenizer of token2text raise, and no other."""

    class Raising:
        @property
        def backend_tokenizer(self) -> Any:
            raise RuntimeError("this tokenizer cannot be read")

    worker.llm_client.tokenizer = Raising()


def integrations_imported() -> list[str]:
    """Return the modules of integrations that this process has imported."""
    return sorted(name for name in sys.modules if name.startswith("otel_rollout.integrations."))


def cancel_one(worker: Any, server: Any, step: int) -> str:
    """Cancel a trajectory when the server has its request, and return the exception."""

    async def run() -> str:
        described = {"step": step, "sample_index": UNANSWERED, "rollout_n": 0, "validate": False}
        row = rows([UNANSWERED], step, False, False)[0]
        requests = await server.waiting.remote()
        trajectory = asyncio.create_task(worker._run_agent_loop({}, trajectory=described, **row))
        while await server.waiting.remote() == requests and not trajectory.done():
            await asyncio.sleep(0.05)
        trajectory.cancel()
        ended = await asyncio.gather(trajectory, return_exceptions=True)
        return type(ended[0]).__name__

    return asyncio.run(asyncio.wait_for(run(), DEADLINE))


@ray.remote
class TaskRunner:
    """Start workers and the run, and have the workers generate, as verl's class does."""

    def run(self, config: Any) -> None:
        from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
        from verl.workers.rollout.router import get_router_handle

        server = ray.remote(Server).remote(config)
        balancer = get_router_handle(servers={"server": server})
        legacy = Legacy(config, LLMServerClient(config, balancer), server)
        self.start_run(config)
        v1 = V1(config, FullyAsyncLLMServerClient(config, balancer), server)
        (worker, *_) = legacy.manager.agent_loop_workers
        integrations = ray.get(worker.__ray_call__.remote(lambda _: integrations_imported()))
        outputs = {"integrations": integrations, "legacy": legacy.outputs(), "v1": v1.outputs()}
        Path(config.directory, "outputs.json").write_text(json.dumps(outputs, indent=1, sort_keys=True))
        self.tracking.finish()

    def start_run(self, config: Any) -> None:
        from verl.utils.tracking import Tracking

        plain = OmegaConf.to_container(config, resolve=True)
        self.tracking = Tracking("verl-tests", "scripted", list(config.trainer.logger), plain)


class Legacy:
    """Use agent loops as the legacy trainer does."""

    def __init__(self, config: Any, client: Any, server: Any) -> None:
        from verl.experimental.agent_loop import AgentLoopManager

        self.server = server
        self.manager = AgentLoopManager.create(
            config=config, llm_client=client, teacher_client=None, reward_loop_worker_handles=[server]
        )

    def outputs(self) -> dict[str, Any]:
        workers = self.manager.agent_loop_workers
        found = {
            str(step): self._generate(rows(list(QUESTIONS), step, False, False), step, False, 4)
            for step in (1, 2)
        }
        found["validation"] = self._generate(rows([0, 1], 2, True, False), 2, True, 1)
        found["cancelled"] = ray.get(workers[0].__ray_call__.remote(cancel_one, self.server, 3))
        ray.get([worker.__ray_call__.remote(break_tokenizer) for worker in workers])
        found["tokenizer raises"] = self._generate(rows(list(QUESTIONS), 4, False, False), 4, False, 4)
        found["more groups"] = self._generate(more_rows(5), 5, False, 4)
        return found

    def _generate(self, samples: list[dict[str, Any]], step: int, validate: bool, n: int) -> Any:
        import numpy as np
        from verl.protocol import DataProto

        columns = {name: np.empty(len(samples), dtype=object) for name in samples[0]}
        for name, column in columns.items():
            column[:] = [row[name] for row in samples]
        batch = DataProto(
            non_tensor_batch=columns, meta_info={"global_steps": step, "validate": validate}
        ).repeat(n, interleave=True)
        made = self.manager.generate_sequences(batch)
        return {
            "responses": made.batch["responses"].tolist(),
            "mask": made.batch["response_mask"].tolist(),
            "rewards": made.batch["rm_scores"].sum(-1).tolist(),
            "acc": [bool(value) for value in made.non_tensor_batch["acc"]],
            "turns": made.non_tensor_batch["__num_turns__"].tolist(),
            "tool_rewards": [list(value) for value in made.non_tensor_batch["tool_rewards"]],
        }


class V1:
    """Use agent loops as the v1 trainer does."""

    def __init__(self, config: Any, client: Any, server: Any) -> None:
        import transfer_queue as tq
        from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

        tq.init(config.transfer_queue)
        self.server = server
        config.actor_rollout_ref.rollout.agent.num_workers = 1
        self.manager = AgentLoopManagerTQ.create(
            config=config, llm_client=client, teacher_client=None, reward_loop_worker_handles=[server]
        )

    def outputs(self) -> dict[str, Any]:
        (worker,) = self.manager.agent_loop_workers
        for step in (11, 12):
            self._generate(rows(list(QUESTIONS), step, False, True), step, False)
        self._generate(rows([0, 1], 12, True, False), 12, True)
        found = {**self._made("train", 2 * len(QUESTIONS)), **self._made("val", 2)}
        found["cancelled"] = ray.get(worker.__ray_call__.remote(cancel_one, self.server, 13))
        ray.get(worker.__ray_call__.remote(break_tokenizer))
        self._generate(rows(list(QUESTIONS), 14, False, True), 14, False)
        self._generate(more_rows(15), 15, False)
        return {**found, **self._made("train", 5 * len(QUESTIONS))}

    def _generate(self, samples: list[dict[str, Any]], step: int, validate: bool) -> None:
        from verl.utils import tensordict_utils as tu

        batch = tu.get_tensordict({name: [row[name] for row in samples] for name in samples[0]})
        tu.assign_non_tensor_data(batch, "global_steps", step)
        if validate:
            tu.assign_non_tensor_data(batch, "validate", True)
        self.manager.generate_sequences(batch)

    def _made(self, partition: str, prompts: int) -> dict[str, Any]:
        import transfer_queue as tq

        deadline = time.monotonic() + DEADLINE
        while True:
            keys = tq.kv_list(partition).get(partition, {})
            done = [key for key, tag in keys.items() if tag.get("status") == "finished"]
            assert not [key for key, tag in keys.items() if tag.get("status") == "failure"], keys
            if len(done) == prompts:
                break
            assert time.monotonic() < deadline, keys
            time.sleep(0.1)
        made = sorted(key for key, tag in keys.items() if tag.get("status") == "success")
        data = tq.kv_batch_get(keys=made, partition_id=partition)
        return {
            f"{partition} {key}": {
                "responses": data["responses"][i].tolist(),
                "mask": data["response_mask"][i].tolist(),
                "reward": data["rm_scores"][i].sum().item(),
            }
            for i, key in enumerate(made)
        }


def main() -> None:
    directory, *overrides = sys.argv[1:]
    config = configuration(Path(directory), [f"+directory={directory}", *overrides])
    run_ppo(config, TaskRunner)


if __name__ == "__main__":
    asyncio.set_event_loop(asyncio.new_event_loop())
    main()
