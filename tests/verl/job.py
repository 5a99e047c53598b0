"""A training job of verl's without training: its launcher, agent loops, tools, rewards; a scripted engine.

Run as ``python -m tests.verl.job DIRECTORY TRAINERS HARM [OVERRIDE …]``. What the trainers got is written to
``DIRECTORY/outputs.json``.
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
from tests.verl.script import POLICY_VERSION, QUESTIONS, Script, rows

DEADLINE = 300.0


class Server(RewardLoopWorker):
    """In the place of an engine's server; computes rewards too, to be one process less."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.script = Script()

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **media: Any
    ) -> TokenOutput:
        tokens, reason = await self.forward(prompt_ids)
        return TokenOutput(
            token_ids=tokens,
            log_probs=[-0.5] * len(tokens),
            stop_reason=reason,
            num_preempted=1,
            extra_fields={"global_steps": POLICY_VERSION, "num_cached_tokens": 3},
        )

    @rollout_trace_op(name="engine.forward")
    async def forward(self, prompt_ids: list[int]) -> tuple[list[int], str]:
        return self.script.reply(prompt_ids)


def tokenizer_that_raises(worker: Any) -> None:
    """Have the tokenizer that token2text uses raise, and no other."""

    class Raising:
        def decode(self, *_: Any, **__: Any) -> str:
            raise RuntimeError("this tokenizer cannot decode")

    worker.llm_client.tokenizer = Raising()


@ray.remote
class TaskRunner:
    """Does what verl's does up to training: starts the workers, then the run, and has them generate."""

    def run(self, config: Any) -> None:
        from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
        from verl.workers.rollout.router import get_router_handle

        server = ray.remote(Server).remote(config)
        balancer = get_router_handle(servers={"server": server})
        outputs: dict[str, Any] = {}
        if "legacy" in config.trainers:
            client = LLMServerClient(config, balancer)
            manager = Legacy(config, client, server)
            self.start_run(config)
            outputs["legacy"] = manager.outputs()
        if "v1" in config.trainers:
            client = FullyAsyncLLMServerClient(config, balancer)
            manager = V1(config, client, server)
            if not outputs:
                self.start_run(config)
            outputs["v1"] = manager.outputs()
        Path(config.directory, "outputs.json").write_text(json.dumps(outputs, indent=1, sort_keys=True))
        self.tracking.finish()

    def start_run(self, config: Any) -> None:
        from verl.utils.tracking import Tracking

        plain = OmegaConf.to_container(config, resolve=True)
        self.tracking = Tracking("verl-tests", "scripted", list(config.trainer.logger), plain)


class Legacy:
    """The legacy trainer's use of agent loops."""

    def __init__(self, config: Any, client: Any, server: Any) -> None:
        from verl.experimental.agent_loop import AgentLoopManager, AgentLoopWorker

        class Manager(AgentLoopManager):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                if config.harm:
                    self.agent_loop_workers_class = ray.remote(harmed(AgentLoopWorker))
                super().__init__(*args, **kwargs)

        self.manager = Manager.create(
            config=config, llm_client=client, teacher_client=None, reward_loop_worker_handles=[server]
        )

    def outputs(self) -> list[Any]:
        found = []
        for step in (1, 2):
            found.append(self._generate(rows(list(QUESTIONS), step, False, False), step, False, 4))
        found.append(self._generate(rows([0, 1], 2, True, False), 2, True, 1))
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
    """The v1 trainer's use of agent loops."""

    def __init__(self, config: Any, client: Any, server: Any) -> None:
        import transfer_queue as tq
        from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

        tq.init(config.transfer_queue)
        config.actor_rollout_ref.rollout.agent.num_workers = 1
        self.manager = AgentLoopManagerTQ.create(
            config=config, llm_client=client, teacher_client=None, reward_loop_worker_handles=[server]
        )
        if config.harm:
            for worker in self.manager.agent_loop_workers:
                ray.get(worker.__ray_call__.remote(tokenizer_that_raises))

    def outputs(self) -> dict[str, Any]:
        for step in (11, 12):
            self._generate(rows(list(QUESTIONS), step, False, True), step, False)
        self._generate(rows([0, 1], 12, True, False), 12, True)
        return {**self._made("train", 2 * len(QUESTIONS)), **self._made("val", 2)}

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


def harmed(worker: type) -> type:
    """A worker of the legacy trainer with a tokenizer that raises."""

    class Harmed(worker):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            tokenizer_that_raises(self)

    return Harmed


def main() -> None:
    directory, trainers, harm, *overrides = sys.argv[1:]
    config = configuration(
        Path(directory),
        [f"+directory={directory}", f"+trainers=[{trainers}]", f"+harm={harm}", *overrides],
    )
    run_ppo(config, TaskRunner)


if __name__ == "__main__":
    asyncio.set_event_loop(asyncio.new_event_loop())
    main()
