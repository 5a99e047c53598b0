"""Consume a worker's samples with TRL's own queue dataset and batcher, and with a loop that trains nothing.

The attention of TRL's asynchronous trainer runs on a GPU only. So the trainer has no model here, and the
methods of transformers' ``Trainer`` that train are replaced.
"""

from __future__ import annotations

import itertools
import queue
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

FIRST_STEP = 5


def trainer() -> Any:
    """Return a trainer without a model and without a worker to stop."""
    from transformers import TrainerState
    from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer

    made = AsyncGRPOTrainer.__new__(AsyncGRPOTrainer)
    made.state = TrainerState(global_step=FIRST_STEP - 1)
    made.accelerator = SimpleNamespace(is_main_process=True)
    made.rollout_worker, made.weight_transfer = None, None
    made._step_microbatches, made._current_train_step_time = 0, 0.0
    return made


def dataset(trainer: Any, rows: queue.Queue[Any], version: int) -> Any:
    """Return TRL's dataset for the rows; the first one that it takes is stale."""
    from trl.experimental.async_grpo.async_grpo_trainer import RolloutQueueDataset

    versions = itertools.chain([version + 1], itertools.repeat(version))
    trainer._rollout_dataset = RolloutQueueDataset(
        rollout_queue=rows,
        model_version_fn=lambda: next(versions),
        check_health_fn=lambda _: None,
        stale_after_s=60.0,
        metrics=defaultdict(list),
        max_staleness=0,
    )
    return trainer._rollout_dataset


def train(trainer: Any, dataset: Any, token_budget: int) -> list[list[int]]:
    """Train on the first micro-batch; return the tokens of its rows."""
    from transformers import Trainer
    from trl.experimental.async_grpo.async_grpo_trainer import TokenBudgetBatcher

    trained: list[list[int]] = []

    def loop(self: Any) -> None:
        (tree_row,) = next(iter(TokenBudgetBatcher(dataset, 1, token_budget, defaultdict(list))))
        self.training_step(None, {}, None)
        trained.extend(example["input_ids"].tolist() for example in tree_row.samples)

    Trainer.training_step = lambda *_: None
    Trainer._inner_training_loop = loop
    trainer._inner_training_loop()
    return trained
