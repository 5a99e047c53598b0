"""Consume a worker's samples with TRL's own queue dataset, batcher, collator and loss.

The attention of TRL's asynchronous trainer runs on a GPU only. So a function of torch stands in for it, and
the methods of transformers' ``Trainer`` that train are replaced.
"""

from __future__ import annotations

import itertools
import queue
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from tests.trl import scripted_model

FIRST_STEP = 5


def attention(query: Any, key: Any, value: Any, starts: Any, key_starts: Any, *_: Any, **options: Any) -> Any:
    """Return what flash attention's function for segments of several lengths does."""
    import torch

    repeats, found = query.shape[1] // key.shape[1], []
    for number in range(len(starts) - 1):
        asked = query[starts[number] : starts[number + 1]].transpose(0, 1)
        keys, values = (
            side[key_starts[number] : key_starts[number + 1]]
            .repeat_interleave(repeats, dim=1)
            .transpose(0, 1)
            for side in (key, value)
        )
        rows, columns = asked.shape[1], keys.shape[1]
        may_see = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        scores = (asked @ keys.transpose(1, 2) * options["softmax_scale"]).masked_fill(~may_see, -torch.inf)
        found.append((scores.softmax(-1) @ values).transpose(0, 1))
    return torch.cat(found)


def model() -> Any:
    """Return a tiny model with TRL's head and attention."""
    from trl.experimental.async_grpo import packing
    from trl.trainer.utils import add_fused_lm_head

    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=attention)
    packing.register_tree_attention()
    made = scripted_model.model(lambda text, row: text)
    made.set_attn_implementation(packing.TREE_ATTENTION)
    add_fused_lm_head(made, temperature=1.0, outputs=("log_probs", "entropy"))
    return made


def trainer(version: int) -> Any:
    """Return a trainer of a policy version without a worker to stop."""
    from accelerate import Accelerator
    from transformers import TrainerState
    from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer

    made = AsyncGRPOTrainer.__new__(AsyncGRPOTrainer)
    made.state = TrainerState(global_step=FIRST_STEP - 1)
    made.accelerator = Accelerator(cpu=True)
    made.model_version = version
    made.epsilon_low = made.epsilon_high = 0.2
    made.current_gradient_accumulation_steps, made.aux_loss_enabled = 1, False
    made._metrics = {"train": defaultdict(list)}
    made._step_forward_tokens = made._step_trained_tokens = made._step_seq_len_weighted = 0.0
    made._step_samples = made._step_forward_s = 0.0
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


def train(trainer: Any, dataset: Any, token_budget: int) -> list[dict[str, Any]]:
    """Train on the first micro-batch; return tokens and log probabilities of its rows."""
    from transformers import Trainer
    from trl.experimental.async_grpo.async_grpo_trainer import DataCollatorForRollout, TokenBudgetBatcher

    trained: list[dict[str, Any]] = []
    made, outputs = model(), []
    made.register_forward_hook(lambda _, __, output: outputs.append(output))

    def loop(self: Any) -> None:
        (tree_row,) = next(iter(TokenBudgetBatcher(dataset, 1, token_budget, defaultdict(list))))
        inputs = DataCollatorForRollout(pad_token_id=0)([[tree_row]])
        self.training_step(made, inputs, None)
        log_probs = outputs[-1].log_probs.flatten()[inputs["token_index"][0]]
        for number, example in enumerate(tree_row.samples):
            own = log_probs[inputs["segment_id"][0] == number]
            trained.append({"input_ids": example["input_ids"].tolist(), "log_probs": own.tolist()})

    Trainer.training_step = lambda self, model, inputs, _: self.compute_loss(model, inputs).backward()
    Trainer._inner_training_loop = loop
    trainer._inner_training_loop()
    return trained
