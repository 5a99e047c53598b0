"""What the loss made of each trajectory, held against tensors that TRL's own methods returned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from otel_rollout.base.environment import PREFIXES
from otel_rollout.integrations.trl.loss import CUT_OFF, LOW_ENTROPY, OFF_POLICY, OUT_OF_BOUNDS
from otel_rollout.integrations.trl.progress import PASSED_OVER, UNUSED
from tests import given_scores
from tests.given_scores import Given
from tests.spool_reader import read_trajectories

SHIFT, SHIFTED_ROW, SHIFTED_TURN, SIBLINGS = 0.75, 2, 2, 4
UNREWARDED: Final = "no reward function gave a reward"
TRAINER_NUMBERS: Final = {
    "buffered": 1,
    "again": 2,
    "planted": 3,
    "planted_and_buffered": 4,
    "corrected_tokens": 5,
    "corrected_rows": 6,
    "entropy": 7,
    "rloo": 8,
    "choosy": 9,
    "own_loss": 10,
}


class Trained:
    """A row of a training: what TRL made of it, and what was recorded."""

    def __init__(self, generated: dict[str, Any], uses: list[dict[str, Any]]) -> None:
        self.generated = generated
        self.uses = uses
        self.sibling = -1
        self.step = 0
        self.scores: dict[str, Given] = {}

    def value(self, name: str) -> Any:
        """Return a score's value; None if it was not given."""
        return self.scores[name].value if name in self.scores else None

    @property
    def reason(self) -> str | None:
        """Why the row was not trained; None if it was."""
        assert self.scores["trained"].value is (self.scores["trained"].comment is None)
        return self.scores["trained"].comment

    @property
    def mask(self) -> Any:
        """1 for the tokens of the model that TRL has not masked."""
        completed = np.array(self.generated["completion_mask"])
        return completed * np.array(self.generated.get("tool_mask", completed))


class Facts:
    """The trainings of the program :mod:`tests.trl.programs.training_facts`."""

    def __init__(self, place: Path, output: str) -> None:
        self.output = output
        self.saved = json.loads((place / "facts.json").read_text())
        scores = given_scores.of_run(place / "rollouts")
        self._rows: dict[str, list[Trained]] = defaultdict(list)
        for name, saved in self.saved.items():
            uses = defaultdict(list)
            for use in (use for batch in saved["uses"] for use in batch):
                uses[use["key"]].append(use)
            self._rows[name] = [
                Trained(row, uses[row["key"]]) for batch in saved["generated"] for row in batch
            ]
        by_key = {row.generated["key"]: row for rows in self._rows.values() for row in rows}
        assert len(by_key) == sum(map(len, self._rows.values())), "two rows have equal completions"
        spans = read_trajectories(place / "spool")
        roots = {span.span.trace_id: span.attributes for span in spans if not span.span.parent_span_id}
        for span in spans:
            if span.name in ("generate", "rollout_func"):
                row = by_key[json.dumps(span.output["response_ids"])]
                row.scores = scores[span.span.trace_id.hex()]
                row.sibling = roots[span.span.trace_id]["rollout.rollout_n"]
                row.step = roots[span.span.trace_id]["rollout.step"]
        assert len(roots) == len(by_key)

    def of(self, name: str) -> list[Trained]:
        """Return the rows of a training in the order in which they were generated."""
        return self._rows[name]


def run(place: Path, variables: dict[str, str]) -> str:
    """Run the program in a directory; return its output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.trl.programs.training_facts", str(place)],
        env=kept | variables | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=590,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Run all trainings once, with values per token."""
    place = tmp_path_factory.mktemp("facts")
    variables = {
        "OTEL_TRACES_EXPORTER": "delta",
        "OTEL_ROLLOUT_DELTA_URI": str(place / "rollouts"),
        "OTEL_ROLLOUT_SPOOL_DIR": str(place / "spool"),
        "OTEL_ROLLOUT_KEEP": "true",
        "OTEL_ROLLOUT_TRAINING_TOKENS": "true",
    }
    return Facts(place, run(place, variables))


def test_weights_are_bit_identical_without_tracing(facts: Facts, tmp_path: Path) -> None:
    """With values per token, too: each training's weights and first loss are those of an untraced one."""
    run(tmp_path, {})
    untraced = json.loads((tmp_path / "facts.json").read_text())
    for name, saved in facts.saved.items():
        assert (saved["digest"], saved["loss"]) == (untraced[name]["digest"], untraced[name]["loss"]), name
        assert saved["uses"] == untraced[name]["uses"], name
    assert "internal error" not in facts.output


def test_advantage_of_each_row_is_trls(facts: Facts) -> None:
    """Every trajectory of every training."""
    rows = [row for name in TRAINER_NUMBERS for row in facts.of(name)]
    assert len(rows) > 70
    assert all(row.value("advantage") == row.generated["advantages"] for row in rows)


def test_step_lag_and_tokens_are_those_of_the_optimizer_step(facts: Facts) -> None:
    """A batch that is generated once is trained on in later steps: the last one counts."""
    found: Counter[int | None] = Counter()
    for row in (row for name in TRAINER_NUMBERS for row in facts.of(name)):
        if name_of(facts, row) in ("own_loss", "again"):
            continue
        steps = [use["global_step"] for use in row.uses]
        generated_at = row.step - 1
        lag = steps[-1] - generated_at if steps else None
        assert row.value("policy_lag") == lag
        assert row.value("trained_step") == (steps[-1] + 1 if lag else None)
        found[lag] += 1
    assert found.keys() == {None, 0, 1, 2, 3}


def name_of(facts: Facts, row: Trained) -> str:
    return next(name for name in TRAINER_NUMBERS if row in facts.of(name))


def test_rows_without_a_use_are_not_trained(facts: Facts) -> None:
    """Training ends before the second half of the last batch is used; cut-off completions are masked."""
    reasons: Counter[str | None] = Counter()
    for row in facts.of("buffered"):
        reasons[row.reason] += 1
        if not row.uses:
            assert (row.reason, row.value("trained_tokens")) == (UNUSED, 0)
            continue
        assert row.value("trained_tokens") == row.mask.sum()
        if not row.mask.any():
            assert row.reason == CUT_OFF
    assert reasons[UNUSED] == SIBLINGS
    assert {CUT_OFF, UNUSED, UNREWARDED, None} == set(reasons)


def test_trained_reward_gives_the_advantage(facts: Facts) -> None:
    """Its distance from the group's mean is TRL's advantage, as the rewards are not scaled."""
    rows, compared = facts.of("buffered"), 0
    for first in range(0, len(rows), SIBLINGS):
        group = [row for row in rows[first : first + SIBLINGS] if row.value("trained_reward") is not None]
        rewards = np.array([row.value("trained_reward") for row in group], dtype=np.float32)
        expected = [row.value("advantage") for row in group]
        assert np.allclose(rewards - rewards.mean(dtype=np.float32), expected, atol=1e-6)
        compared += len(group)
        assert all(row.value("reward") == row.value("trained_reward") for row in group)
    assert compared > 10


def test_second_training_uses_what_the_first_has_left(facts: Facts) -> None:
    """Its steps have the numbers of the first one's; the newest verdict of each row counts."""
    rows = facts.of("again")
    assert all(row.uses for row in rows)
    assert {row.reason for row in rows} <= {None, UNREWARDED}


def test_planted_mismatch_is_found_at_its_row_turn_and_token(facts: Facts) -> None:
    """Also where the trainer keeps no log probabilities of its own, and where rows are trained later."""
    for name in ("planted", "planted_and_buffered", "corrected_tokens", "corrected_rows"):
        for row in facts.of(name):
            of_trainer = row.generated.get("old_per_token_logps") or row.uses[0]["log_probs"]
            sampler = np.array(row.generated["sampling_per_token_logps"], dtype=np.float32)
            differences = np.abs(sampler - np.array(of_trainer, dtype=np.float32)) * row.mask
            counted = row.mask.sum()
            assert row.value("logprob_diff_max") == differences.max()
            assert row.value("logprob_diff_token") == differences.argmax()
            assert row.value("logprob_diff_mean") == pytest.approx(differences.sum() / counted, rel=1e-5)
            assert row.value("logprob_diff_share") == pytest.approx((differences > 0.1).sum() / counted)
            is_planted = row.value("logprob_diff_mean") > 0.1
            assert is_planted is (row in planted_rows(facts, name))
            if is_planted:
                assert row.value("logprob_diff_turn") == SHIFTED_TURN
                assert row.value("logprob_diff_max") == pytest.approx(SHIFT, abs=1e-4)


def planted_rows(facts: Facts, name: str) -> list[Trained]:
    """Return the rows of one index in each batch."""
    rows, size = facts.of(name), len(facts.saved[name]["generated"][0])
    return rows[SHIFTED_ROW::size]


def test_trainer_without_a_sampler_has_no_mismatch(facts: Facts) -> None:
    """Generation by transformers gives no log probabilities."""
    for row in facts.of("buffered") + facts.of("rloo"):
        assert not [name for name in row.scores if name.startswith(("logprob_diff", "importance"))]


def test_importance_ratio_masks_tokens_or_rows(facts: Facts) -> None:
    """The ratio is the mean over the model's tokens, as TRL logs it; tokens with 0 do not count."""
    for name in ("corrected_tokens", "corrected_rows"):
        for row in facts.of(name):
            ratio = np.array(row.generated["importance_sampling_ratio"], dtype=np.float32)
            of_tokens = np.broadcast_to(ratio, row.mask.shape)
            mean = (of_tokens * row.mask).sum() / row.mask.sum()
            assert row.value("importance_ratio") == pytest.approx(mean, rel=1e-6)
            assert row.value("trained_tokens") == (row.mask * (of_tokens != 0)).sum()
    (dropped,) = planted_rows(facts, "corrected_rows")
    assert (dropped.reason, dropped.value("trained_tokens")) == (OUT_OF_BOUNDS, 0)
    (cut,) = planted_rows(facts, "corrected_tokens")
    assert cut.reason is None
    assert 0 < cut.value("trained_tokens") < cut.mask.sum()


def test_off_policy_mask_of_the_loss_drops_a_row(facts: Facts) -> None:
    """The mask is the tensor that TRL multiplies the loss by."""
    reasons = set()
    for row in facts.of("planted_and_buffered"):
        (use,) = row.uses
        assert (row.reason == OFF_POLICY) is (use["off_policy"] == [0])
        assert row.value("trained_tokens") == row.mask.sum() * use["off_policy"][0]
        reasons.add(row.reason)
    assert reasons == {None, OFF_POLICY}


def test_entropy_mask_of_the_loss_leaves_few_tokens(facts: Facts) -> None:
    """A row without any of them is not trained."""
    for row in facts.of("entropy"):
        (use,) = row.uses
        counted = (row.mask * np.array(use["entropy"])).sum()
        assert row.value("trained_tokens") == counted
        assert counted or row.reason in (LOW_ENTROPY, UNREWARDED)


def test_rloo_subtracts_the_penalty_from_the_clipped_reward(facts: Facts) -> None:
    """The advantage is the distance from the mean of the siblings' trained rewards."""
    rows, log_probs = facts.of("rloo"), facts.saved["rloo"]["log_probs"]
    size = len(facts.saved["rloo"]["generated"][0])
    for number, row in enumerate(rows):
        policy, reference = (np.array(side[number % size], np.float32) for side in log_probs[number // size])
        penalty = 0.5 * ((policy - reference) * row.mask).sum()
        assert row.value("kl_penalty") == pytest.approx(penalty, rel=1e-4)
        assert penalty != 0
        if row.value("reward") is not None:
            clipped = min(max(float(row.value("reward")), 0.5), 2.5)
            assert row.value("trained_reward") == pytest.approx(clipped - row.value("kl_penalty"), rel=1e-5)
    for first in range(0, len(rows), SIBLINGS):
        group = [row for row in rows[first : first + SIBLINGS] if row.value("trained_reward") is not None]
        rewards = np.array([row.value("trained_reward") for row in group], dtype=np.float32)
        baselines = (rewards.sum() - rewards) / (len(group) - 1)
        assert [row.value("advantage") for row in group] == pytest.approx(rewards - baselines, rel=1e-4)


def test_rows_that_a_trainer_drops_are_not_trained(facts: Facts) -> None:
    """A trainer of one's own generates twice and keeps a half of each; the last batch is left at the end."""
    rows = facts.of("choosy")
    for row in rows:
        assert bool(row.uses) is (row.reason in (None, UNREWARDED))
    dropped = Counter(row.reason for row in rows if not row.uses)
    assert dropped == {PASSED_OVER: len(rows) // 4, UNUSED: len(rows) // 4}


def test_trainer_with_a_loss_of_its_own_is_decided_by_its_masks(facts: Facts) -> None:
    """Nothing is said about steps."""
    for row in facts.of("own_loss"):
        assert row.reason in (None, CUT_OFF, UNREWARDED)
        assert (row.reason == CUT_OFF) is (not row.mask.any())
        assert row.value("trained_tokens") == row.mask.sum()
        assert row.value("policy_lag") is None


def test_rewards_that_are_no_numbers_harm_nothing(facts: Facts) -> None:
    """An infinite reward makes its group's advantages 0 in TRL; a missing one has no score."""
    infinite = [row for name in TRAINER_NUMBERS for row in facts.of(name) if row.value("reward") == "inf"]
    assert infinite
    assert {row.value("advantage") for row in infinite} == {0.0}
