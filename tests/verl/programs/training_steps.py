"""Run training steps of verl's trainers without a model: ``python -m … DIRECTORY [OVERRIDE …]``.

The loops, batches, rewards, advantages, filters and corrections are verl's. The engine is scripted: each of
its replies ends with a number, so that no two trajectories have equal tokens. What would need a model is
computed here: the trainer's log probabilities, with a planted difference, and the update. What the trainers
have before each update is written to ``DIRECTORY/batches.pt``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import torch
from omegaconf import OmegaConf
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.trainer.main_ppo import run_ppo
from verl.workers.rollout.replica import TokenOutput

from otel_rollout_demo.tokenizer import load_tokenizer
from tests.verl.configuration import configuration
from tests.verl.script import Script, rows

KINDS = (0, 1, 2, 4)
"""Questions of the dataset: row ``i`` asks the ``i % 4``-th."""
EQUAL_REWARDS = 2
"""Position in ``KINDS`` of the questions whose answers all get one reward."""
STALE = 1
"""Position in ``KINDS`` of the questions whose answers come from older weights."""
STALE_VERSIONS = 3
ROWS = 24
GROUPS = 3
"""Prompts of a training batch."""
SIBLINGS = 4
STEPS = 2
DIFFERENCE = 0.3
"""Planted difference of log probabilities, in the second turn of one trajectory of each step."""


class Server(RewardLoopWorker):
    """Replace an engine's server, and compute rewards, which saves a process."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._script = Script()
        self._tokenizer = load_tokenizer()
        self._asked: Counter[tuple[int, ...]] = Counter()
        self._version = 0

    async def set_version(self, version: int) -> None:
        self._version = version

    def number(self, prompt_ids: list[int]) -> int:
        """Return the number that the reply ends with: how often the prompt came before."""
        self._asked[tuple(prompt_ids)] += 1
        return self._asked[tuple(prompt_ids)] - 1

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **rest: Any
    ) -> TokenOutput:
        reply = self._script.reply(prompt_ids)
        assert reply is not None
        tokens, reason = reply
        number = self.number(prompt_ids)
        said = self._tokenizer.encode(f" number {number}", add_special_tokens=False)
        tokens = [*tokens[:-1], *said, tokens[-1]]
        is_stale = "note:" in self._tokenizer.decode(prompt_ids)
        return TokenOutput(
            token_ids=tokens,
            log_probs=[-(token % 97) / 100 for token in tokens],
            stop_reason=reason,
            extra_fields={"global_steps": self._version - STALE_VERSIONS * is_stale},
        )


def dataset() -> list[dict[str, Any]]:
    """Return rows as verl's dataset gives them to its trainers."""
    found = []
    for index in range(ROWS):
        (row,) = rows([KINDS[index % 4]], 0, False, False)
        row.pop("uid")
        truth = "nothing to learn" if index % 4 == EQUAL_REWARDS else "42"
        raw_prompt = [*row["raw_prompt"][:-1], {**row["raw_prompt"][-1]}]
        raw_prompt[-1]["content"] += f" (row {index})"
        found.append(
            {
                **row,
                "raw_prompt": raw_prompt,
                "reward_model": {"style": "rule", "ground_truth": truth},
                "index": index,
                "extra_info": {"index": index},
                "dummy_tensor": torch.zeros(1, dtype=torch.uint8),
            }
        )
    return found


def with_difference(sampler: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the trainer's log probabilities.

    They are the sampler's, but for the second turn of the first row that has one.
    """
    trainer = sampler.clone()
    for row in range(len(mask)):
        starts = [i for i in range(mask.shape[1]) if mask[row, i] and (i == 0 or not mask[row, i - 1])]
        if len(starts) > 1:
            end = next((i for i in range(starts[1], mask.shape[1]) if not mask[row, i]), mask.shape[1])
            trainer[row, starts[1] : end] += DIFFERENCE
            break
    return trainer


class Checkpoints:
    """Give the engine the number of its weights, in place of weights."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def update_weights(self, global_steps: int | None = None) -> None:
        if global_steps is not None:
            result_of(self._server.set_version.remote(global_steps))

    def sleep_replicas(self) -> None: ...


def result_of(reference: Any) -> Any:
    """Return the result of a call of an actor, or of an object in this process."""
    return asyncio.run(reference) if asyncio.iscoroutine(reference) else ray.get(reference)


class Saved(list[dict[str, Any]]):
    """What the trainers had before each update."""

    def add(self, trainer: str, step: int, batch: dict[str, Any]) -> None:
        self.append({"trainer": trainer, "step": step, **batch})


@ray.remote
class TaskRunner:
    """Start workers and run the trainers, as verl's classes do."""

    def run(self, config: Any) -> None:
        import transfer_queue as tq
        from verl.experimental.agent_loop import AgentLoopManager
        from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
        from verl.workers.rollout.llm_server import LLMServerClient
        from verl.workers.rollout.router import get_router_handle

        server = ray.remote(Server).remote(config)
        balancer = get_router_handle(servers={"server": server})
        client = LLMServerClient(config, balancer)
        saved = Saved()
        for name in config.run.split(","):
            own = config_of(name, config)
            workers = {
                "config": own,
                "llm_client": client,
                "teacher_client": None,
                "reward_loop_worker_handles": None if name == "colocated" else [server],
            }
            if name == "v1":
                tq.init(own.transfer_queue)
                run_v1(own, AgentLoopManagerTQ.create, workers, server, saved)
            else:
                run_legacy(name, own, AgentLoopManager.create(**workers), server, saved)
        torch.save(list(saved), Path(config.directory, "batches.pt"))


def config_of(name: str, config: Any) -> Any:
    """Return the configuration of a trainer; "remax" has one sampled and one greedy rollout per prompt."""
    config = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    if name == "remax":
        config.algorithm.adv_estimator = "remax"
        config.actor_rollout_ref.rollout.n = 1
        config.data.train_batch_size = 4
    return config


def run_legacy(name: str, config: Any, manager: Any, server: Any, saved: Saved) -> None:
    """Run the legacy trainer; with the name "colocated" it computes rewards after the rollouts."""
    from verl.protocol import DataProto
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer, Role
    from verl.utils import tensordict_utils as tu

    class Trainer(RayPPOTrainer):
        def _balance_batch(self, batch: Any, metrics: Any, **rest: Any) -> None:
            if name == "legacy":
                leave_out_group(batch)
            batch.reorder(torch.arange(len(batch) - 1, -1, -1))

        def _compute_old_log_prob(self, batch: Any) -> Any:
            tensors = batch.batch
            found = with_difference(tensors["rollout_log_probs"], tensors["response_mask"])
            return DataProto.from_dict({"old_log_probs": found, "entropys": torch.zeros_like(found)}), 0.0

        def _compute_ref_log_prob(self, batch: Any) -> Any:
            return DataProto.from_dict({"ref_log_prob": batch.batch["old_log_probs"] - 0.25})

        def _update_actor(self, batch: Any) -> Any:
            kept = {key: value.clone() for key, value in batch.batch.items()}
            columns = {key: list(batch.non_tensor_batch[key]) for key in ("min_global_steps", "extra_info")}
            more = {
                "lengths": batch.batch["attention_mask"][:, -batch.batch["responses"].shape[1] :]
                .sum(1)
                .tolist(),
                "indices": [info["index"] for info in columns["extra_info"]],
                "oldest": columns["min_global_steps"],
            }
            saved.add(name, self.global_steps, {**kept, **columns, **more})
            return super()._update_actor(batch)

    start = first_step(name)
    trainer = Trainer(
        config,
        load_tokenizer(),
        {Role.ActorRolloutRef: None},
        SimpleNamespace(get_n_gpus=lambda: 1),
        train_dataset=dataset(),
        val_dataset=dataset()[:3],
        device_name="cpu",
    )
    trainer.actor_rollout_wg = SimpleNamespace(
        update_actor=lambda batch: tu.get_tensordict({}, non_tensor_dict={"metrics": {"mfu": 0.0}})
    )
    trainer.checkpoint_manager = Checkpoints(server)
    trainer.use_rm = name == "colocated"
    trainer.reward_loop_manager = ColocatedRewards(server)
    trainer.async_rollout_manager = manager
    trainer._load_checkpoint = lambda: setattr(trainer, "global_steps", start)
    trainer.total_training_steps = start + STEPS
    trainer.fit()


def first_step(name: str) -> int:
    """Return the step before the trainer's first, different for each: they record the same rows."""
    return {"legacy": 0, "remax": 10, "colocated": 20, "v1": 30}[name]


def leave_out_group(batch: Any) -> None:
    """Keep all groups but that of the batch's first row, as dynamic sampling filters them."""
    (filtered,) = {batch.non_tensor_batch["uid"][0]}
    keep = np.array([uid != filtered for uid in batch.non_tensor_batch["uid"]])
    batch.batch = batch.batch[torch.from_numpy(keep)]
    batch.non_tensor_batch = {key: value[keep] for key, value in batch.non_tensor_batch.items()}


class ColocatedRewards:
    """verl's manager of rewards that are computed after the rollouts, with one worker."""

    def __init__(self, server: Any) -> None:
        from verl.experimental.reward_loop import reward_loop

        self._manager = reward_loop.RewardLoopManager.__new__(reward_loop.RewardLoopManager)
        self._manager.reward_model_manager = None
        self._manager.reward_loop_workers = [server]
        self._manager.reward_manager_cls = SimpleNamespace(assemble_rm_scores=assembled)
        self.reward_loop_worker_handles = [server]

    def compute_rm_score(self, data: Any) -> Any:
        return self._manager.compute_rm_score(data)


def assembled(data: Any, scores: list[float]) -> torch.Tensor:
    """Return rewards per token: the whole at the last token."""
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

    return RewardManagerBase.assemble_rm_scores(data, scores)


def run_v1(config: Any, new_manager: Any, workers: dict[str, Any], server: Any, saved: Saved) -> None:
    """Run the synchronous v1 trainer with dynamic sampling."""
    import transfer_queue as tq
    from tensordict import TensorDict
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl.utils.dataset.rl_dataset import collate_fn

    config.algorithm.filter_groups.enable = True
    config.data.gen_batch_size = 1

    class Trainer(PPOTrainerSync):
        def _setup(self) -> None:
            self.tokenizer = load_tokenizer()
            self._init_dump_executor()
            self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
            self.checkpoint_manager = Checkpoints(server)
            self.reward_loop_manager = ColocatedRewards(server)
            self.llm_server_manager = None
            self.train_dataset = dataset()
            self.train_dataloader = StatefulDataLoader(
                self.train_dataset, batch_size=1, num_workers=0, collate_fn=collate_fn
            )
            self.train_dataloader_it = None
            self.steps_per_epoch = ROWS // GROUPS
            self.global_steps = first_step("v1")
            self.total_training_steps = self.global_steps + STEPS
            self.actor_rollout_wg = SimpleNamespace(
                _dispatch_info={"actor": [0, 1]},
                update_actor=lambda batch: {"metrics": {"mfu": 0.0}},
            )

        def _compute_old_log_prob(self, batch: Any, metrics: Any) -> Any:
            fields = ["rollout_log_probs", "response_mask"]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
            padded = data.to_padded_tensor()
            found = with_difference(padded["rollout_log_probs"], padded["response_mask"])
            return self._put(batch, "old_log_probs", found, data["response_mask"])

        def _compute_ref_log_prob(self, batch: Any, metrics: Any) -> Any:
            fields = ["old_log_probs", "response_mask"]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
            padded = data.to_padded_tensor()["old_log_probs"]
            return self._put(batch, "ref_log_prob", padded - 0.25, data["response_mask"])

        def _put(self, batch: Any, name: str, padded: torch.Tensor, like: torch.Tensor) -> Any:
            lengths = like.offsets().diff()
            nested = torch.nested.as_nested_tensor(
                [row[:length] for row, length in zip(padded, lengths, strict=True)], layout=torch.jagged
            )
            fields = TensorDict({name: nested}, batch_size=len(batch))
            tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
            return batch

        def _update_actor(self, batch: Any, metrics: Any) -> Any:
            fields = [
                "responses",
                "response_mask",
                "advantages",
                "returns",
                "rm_scores",
                "token_level_rewards",
            ]
            fields += ["old_log_probs", "rollout_log_probs", "rollout_is_weights"]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
            info = tq.kv_batch_get(
                keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_info"]
            )["extra_info"]
            indices = [getattr(one, "data", one)["index"] for one in info]
            is_padding = [tag.get("is_padding", False) for tag in batch.tags]
            more = {
                "lengths": [tag["response_len"] for tag in batch.tags],
                "indices": [None if pads else i for i, pads in zip(indices, is_padding, strict=True)],
                "oldest": [tag["min_global_steps"] for tag in batch.tags],
            }
            kept = {key: value.clone() for key, value in data.to_padded_tensor().items()}
            saved.add("v1", self.global_steps, {**kept, **more})
            return super()._update_actor(batch, metrics=metrics)

        def _compute_metrics(self, *_: Any, **__: Any) -> None: ...

    trainer = Trainer(config)
    trainer.replay_buffer.poll_interval = 0.05
    trainer.init()
    trainer.fit(new_manager(**workers))


OVERRIDES = [
    "actor_rollout_ref.rollout.calculate_log_probs=True",
    f"actor_rollout_ref.rollout.n={SIBLINGS}",
    f"reward.custom_reward_function.path={Path(__file__).parents[1] / 'numbered_reward.py'}",
    "algorithm.adv_estimator=grpo",
    "algorithm.use_kl_in_reward=True",
    "algorithm.rollout_correction.rollout_is=token",
    "algorithm.rollout_correction.rollout_rs=seq_mean_k2",
    "algorithm.rollout_correction.rollout_rs_threshold=0.01",
    f"data.train_batch_size={GROUPS}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "data.dataloader_num_workers=0",
    "data.shuffle=False",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.val_before_train=False",
    "trainer.total_epochs=5",
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=1",
]


def main() -> None:
    directory, runs, *overrides = sys.argv[1:]
    here = [f"+directory={directory}", f"+run='{runs}'", *OVERRIDES]
    config = configuration(Path(directory), [*here, *overrides])
    started = time.monotonic()
    run_ppo(config, TaskRunner)
    print(f"trained in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    asyncio.set_event_loop(asyncio.new_event_loop())
    main()
