"""Rows of training batches whose trajectory is not known, and versions that lack what is patched."""

from __future__ import annotations

import logging
import math
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from verl.protocol import DataProto

from otel_rollout.integrations.verl import legacy_training, seams, v1_training
from otel_rollout.integrations.verl.known_trajectories import SampleIdentity, known
from otel_rollout.integrations.verl.training_columns import Columns, columns_of
from otel_rollout.integrations.verl.v1_training import one_row_per_trajectory
from otel_rollout.record.recording.state import state

pytestmark = pytest.mark.usefixtures("tracing")
_SIBLINGS = 2


def _manager() -> Any:
    rollout = SimpleNamespace(n=_SIBLINGS, temperature=1.0, val_kwargs=SimpleNamespace(n=1))
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    return SimpleNamespace(config=config, agent_loop_workers=[None, None])


def _prompts(indices: list[int], step: int = 1) -> DataProto:
    columns = {
        "index": np.array(indices, dtype=object),
        "priority": np.arange(len(indices)),
    }
    return DataProto(non_tensor_batch=columns, meta_info={"global_steps": step})


def _generated(rows: int) -> DataProto:
    objects = np.empty(rows, dtype=object)
    objects[:] = [[] for _ in range(rows)]
    return DataProto.from_dict({"responses": torch.zeros(rows, 3)}, {"tool_rewards": objects})


@pytest.fixture(autouse=True)
def _is_trained_here() -> None:
    """Import the trainer: batches wait for their training only where it is."""
    import verl.trainer.ppo.ray_trainer  # noqa: F401


def _note(indices: list[int], step: int = 1) -> DataProto:
    output = _generated(len(indices))
    legacy_training.note_generated(_manager(), _prompts(indices, step), output, None)
    return output


def test_rows_are_recognized_after_they_were_reordered_and_joined() -> None:
    """Two batches of one step, as dynamic sampling makes them."""
    joined = DataProto.concat([_note([0, 0, 1, 1]), _note([2, 2, 3, 3])])
    joined.reorder(torch.tensor([6, 1, 0, 5]))
    assert legacy_training.rows_of(joined) == [
        SampleIdentity(1, 3, 0),
        SampleIdentity(1, 0, 1),
        SampleIdentity(1, 0, 0),
        SampleIdentity(1, 2, 1),
    ]
    left_out, baselines = legacy_training.take_left_out(joined)
    assert sorted(left_out) == [
        SampleIdentity(1, 1, 0),
        SampleIdentity(1, 1, 1),
        SampleIdentity(1, 2, 0),
        SampleIdentity(1, 3, 1),
    ]
    assert not baselines
    assert not known().batches


@pytest.mark.parametrize("indices", [[0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 2, 2]])
def test_duplicated_dataset_rows_are_counted_and_not_recorded(
    indices: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Of two trajectories of one identity, neither can be named."""
    rows = legacy_training.rows_of(_note(indices))
    assert rows == [
        None if index == 0 else SampleIdentity(1, index, n % 2) for n, index in enumerate(indices)
    ]
    assert state.runtime is not None
    assert state.runtime.writer.counters.read().skips["score_of_unknown"] == indices.count(0)
    assert sum("same step, sample_index and rollout_n" in line for line in caplog.messages) == 1


def test_step_that_is_repeated_in_one_process_is_not_recorded() -> None:
    """The trajectories of both attempts have one identity."""
    _note([0, 0])
    assert legacy_training.rows_of(_note([0, 0])) == [None, None]


def test_rows_of_another_process_are_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    """One warning gives the reason."""
    for _ in range(2):
        assert legacy_training.rows_of(_generated(3)) == [None] * 3
        assert v1_training.rows_of_keys(["a_0_0", "no-key"], [{}, {}]) == [None, None]
    assert sum("this process" in line for line in caplog.messages) == 2


def test_rows_that_pad_a_batch_are_no_trajectories(caplog: pytest.LogCaptureFixture) -> None:
    """They are not counted either."""
    assert v1_training.rows_of_keys(["pad1_0_0"], [{"is_padding": True}]) == [None]
    assert not caplog.messages


def test_prompts_of_one_row_in_a_step_are_not_told_apart() -> None:
    """The v1 trainer's prompts have an identity each."""
    prompts = {"uid": ["a", "b", "c"], "index": torch.tensor([4, 4, 5]), "global_steps": 2}
    v1_training.note_prompts(_manager(), _Rows(prompts), None)
    rows = v1_training.rows_of_keys(["a_0_0", "b_1_0", "c_1_0"], [{}] * 3)
    assert rows == [None, None, SampleIdentity(2, 5, 1)]


class _Rows(dict):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return len(self["uid"])


def _batch(**tensors: Any) -> Any:
    mask = torch.tensor([[1, 1], [0, 0]])
    return SimpleNamespace(batch={"response_mask": mask, **tensors})


def test_version_without_tensors_gives_what_there_is() -> None:
    """No advantage, no reward, no log probabilities."""
    batch = _batch()
    columns = columns_of(batch, batch.batch["response_mask"], None, has_actor_update=True)
    assert columns.scores == {"trained": [True, False], "trained_tokens": [2, 0]}
    assert columns.reasons == [None, "no token counts for the loss"]


def test_advantage_that_is_no_number_is_kept() -> None:
    """It is a finding."""
    batch = _batch(advantages=torch.full((2, 2), math.nan))
    columns = columns_of(batch, batch.batch["response_mask"], None, has_actor_update=True)
    first, second = columns.scores["advantage"]
    assert math.isnan(first)
    assert second is None


def test_bypass_mode_compares_nothing() -> None:
    """Then one of the log probabilities is a copy of the other, and the actor rejects."""
    batch = _batch(old_log_probs=torch.zeros(2, 2), rollout_log_probs=torch.zeros(2, 2))
    correction = {"bypass_mode": True, "rollout_rs": "token_k1"}
    assert columns_of(batch, batch.batch["response_mask"], correction, has_actor_update=True).scores == {}


def test_several_outputs_of_a_trajectory_are_joined() -> None:
    """Tokens are added, the reward is that of the last output."""
    row, other = SampleIdentity(1, 0, 0), SampleIdentity(1, 0, 1)
    columns = Columns(
        {"trained_tokens": [3, 4, 5], "trained_reward": [1.0, 1.0, 2.0], "trained": [True, False, False]},
        [None, "reason", "reason"],
        {},
    )
    keys = ["u_0_1", "u_0_0", "u_1_0"]
    rows, joined = one_row_per_trajectory([row, row, other], keys, columns)
    assert rows == [row, other]
    assert joined.scores["trained_tokens"] == [7, 5]
    assert joined.scores["trained_reward"] == [1.0, 2.0]
    assert joined.scores["trained"] == [True, False]
    assert joined.reasons == [None, "reason"]


def test_trainer_without_the_method_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Training is untouched."""
    module: Any = types.ModuleType("verl.trainer.ppo.ray_trainer")
    others = dict.fromkeys(("_update_critic", "_compute_reward_colocate", "fit"), lambda self: "fitted")
    module.RayPPOTrainer = type("RayPPOTrainer", (), others)
    seams.patch((".legacy_training",), module)
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "RayPPOTrainer._update_actor, so it is not recorded what the legacy trainer makes" in line
    assert module.RayPPOTrainer().fit() == "fitted"
