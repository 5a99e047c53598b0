"""What verl's legacy trainer makes of trajectories, against the tensors that the trainer had.

Trainer, batches, advantages, corrections and agent loops are verl's, in this process. A row of the trainer's
batch is recognized by its tokens, which are in the trajectory's trace too, so identities are tested as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import otel_rollout
from otel_rollout.record.recording.state import state
from tests.verl.versions import VERL

if VERL < (0, 9):
    pytest.skip("these steps are those of verl 0.9", allow_module_level=True)

from tests.verl.local_training import train
from tests.verl.programs.training_steps import DIFFERENCE, SIBLINGS, STALE, STALE_VERSIONS, STEPS
from tests.verl.recorded_training import Recorded, Row, differing, expected_scores


def _delivered(tmp_path: Path) -> Recorded:
    assert not otel_rollout.shutdown(120).undelivered
    return Recorded(tmp_path / "spool-delivered.jsonl")


def _rows(recorded: Recorded, batch: dict[str, Any]) -> list[Row]:
    """Return the trajectory of each row of a saved batch, by the row's tokens."""
    lengths = batch["attention_mask"][:, -batch["responses"].shape[1] :].sum(1).tolist()
    rows = zip(batch["extra_info"], batch["responses"].tolist(), lengths, strict=True)
    return [recorded.trajectory(batch["step"], info["index"], row[:length]) for info, row, length in rows]


def _lag(batch: dict[str, Any], row: int) -> int:
    return int(batch["step"] - 1 - batch["min_global_steps"][row])


@pytest.mark.usefixtures("tracing")
def test_scores_equal_the_trainers_tensors(tmp_path: Path) -> None:
    """Each value of each trajectory; what was planted is at the right ones.

    Planted are a left-out group, stale weights and a mismatch.
    """
    saved = train(tmp_path / "configuration", "legacy")
    recorded = _delivered(tmp_path)
    assert [batch["step"] for batch in saved] == [1, 2]
    assert len(recorded.roots) == len(recorded.tokens) == len(recorded.scores) == STEPS * 3 * SIBLINGS
    for batch in saved:
        step, rows = batch["step"], _rows(recorded, batch)
        for number, row in enumerate(rows):
            scores = recorded.scores[row]
            assert not differing(scores, expected_scores(batch, number, _lag(batch, number)))
            is_stale = row[1] % 4 == STALE
            assert scores["policy_lag"] == (STALE_VERSIONS if is_stale else 0)
        mismatched = [row for row in rows if recorded.scores[row]["logprob_diff_max"] > 0]
        assert len(mismatched) == 1
        planted = recorded.scores[mismatched[0]]
        assert planted["logprob_diff_max"] == pytest.approx(DIFFERENCE, rel=1e-5)
        assert planted["logprob_diff_turn"] == 2
        left_out = {row for row in recorded.roots if row[0] == step} - set(rows)
        assert len(left_out) == SIBLINGS
        assert len({row[1] for row in left_out}) == 1
        for row in left_out:
            assert recorded.scores[row] == {"trained": False, "trained_tokens": 0}
            assert recorded.comments[row]["trained"] == "left out of the training batch"
    rejected = [row for row, given in recorded.comments.items() if "rollout_correction" in given["trained"]]
    assert rejected
    assert all(recorded.scores[row]["logprob_diff_max"] > 0.2 for row in rejected)


@pytest.mark.usefixtures("tracing")
def test_greedy_baseline_is_told_apart_from_the_sibling(tmp_path: Path) -> None:
    """REMAX's baseline has the index after the last sibling, an attribute and a reason."""
    saved = train(tmp_path / "configuration", "remax")
    recorded = _delivered(tmp_path)
    baselines = {row for row, root in recorded.roots.items() if root.get("rollout.baseline")}
    assert {row[2] for row in baselines} == {1}
    assert {row[2] for row in set(recorded.roots) - baselines} == {0}
    assert len(baselines) * 2 == len(recorded.roots) == len(recorded.scores) == STEPS * 4 * 2
    for row in baselines:
        assert recorded.scores[row]["trained"] is False
        assert recorded.comments[row]["trained"] == "greedy baseline of REMAX"
    for batch in saved:
        for number, row in enumerate(_rows(recorded, batch)):
            assert row not in baselines
            expected = expected_scores(batch, number, _lag(batch, number))
            assert not differing(recorded.scores[row], expected)


def test_batches_are_equal_with_and_without_tracing(
    tmp_path: Path, fresh_process: None, request: pytest.FixtureRequest
) -> None:
    """Bit by bit, and the same columns."""
    overrides = ("legacy", "algorithm.adv_estimator=reinforce_plus_plus")
    plain = train(tmp_path / "plain", *overrides, is_numbered=False)
    assert state.runtime is None
    assert all(batch["advantages"].any() for batch in plain)
    request.getfixturevalue("tracing")
    traced = train(tmp_path / "traced", *overrides, is_numbered=False)
    recorded = _delivered(tmp_path)
    assert len(recorded.scores) == len(recorded.roots) > 0
    for one, other in zip(traced, plain, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            if torch.is_tensor(value):
                assert torch.equal(value, other[name]), name
            else:
                assert np.array_equal(value, other[name]), name
