"""Rewards: what is missing, constant, without spread, or against a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.health.answers import answer, given, trace, trajectories
from tests.table.tables import row


def test_run_without_rewards_is_unobserved(tmp_path: Path) -> None:
    """Nobody knows whether its rewards are right."""
    rows = list(trajectories(8))
    for name in ("reward_missing", "reward_constant", "groups_without_spread", "reward_disagrees"):
        assert answer(tmp_path / name, name, rows).status == "unobserved"


def test_failed_trajectory_needs_no_reward(tmp_path: Path) -> None:
    """It ended before the reward function."""
    failed = [each | {"status": "error"} for each in trajectories(8, step=2)]
    rows = [*trajectories(8), *(given(index, 1, index / 8) for index in range(8)), *failed]
    assert answer(tmp_path, "reward_missing", rows).status == "healthy"


def test_missing_rewards_name_the_step_and_the_trajectories(tmp_path: Path) -> None:
    """Eight of the second step have none."""
    rows = [*trajectories(8), *(given(index, 1, index / 8) for index in range(8)), *trajectories(8, step=2)]
    finding = answer(tmp_path, "reward_missing", rows)
    assert (finding.status, finding.steps) == ("unhealthy", (2,))
    assert finding.evidence == ("2/0/0", "2/1/3")
    assert finding.message == "100% of the trajectories of step 2 have no reward."


def test_newest_step_that_still_runs_has_no_missing_reward(tmp_path: Path) -> None:
    """Its rewards may follow."""
    running = row(trace(9000), "b", "ff", kind="LLM", step=2, sample_index="5")
    first = [*trajectories(8), *(given(index, 1, index / 8) for index in range(8))]
    assert answer(tmp_path, "reward_missing", [*first, *trajectories(8, step=2), running]).status == "healthy"


def test_hard_task_with_few_rewards_is_healthy(tmp_path: Path) -> None:
    """One of 64 succeeds: whole steps without a success are chance."""
    rows = []
    for step in range(1, 9):
        rows += [*trajectories(16, step)]
        rows += [given(index, step, float(step % 4 == 0 and index == 3)) for index in range(16)]
    assert answer(tmp_path, "reward_constant", rows).status == "healthy"


def test_reward_that_is_constant_in_the_run_is_unhealthy(tmp_path: Path) -> None:
    """Every trajectory has the same one."""
    rows = [*trajectories(8), *(given(index, 1, 0.5) for index in range(8))]
    finding = answer(tmp_path, "reward_constant", rows)
    assert (finding.status, finding.steps) == ("unhealthy", (1,))
    assert finding.message.startswith("All 8 rewards of step 1 are 0.5:")


def test_one_trajectory_has_no_constant_reward(tmp_path: Path) -> None:
    """One reward says nothing."""
    assert answer(tmp_path, "reward_constant", [*trajectories(1), given(0, 1, 1.0)]).status == "unobserved"


def test_groups_whose_siblings_agree_teach_nothing(tmp_path: Path) -> None:
    """All groups have one reward each, though groups differ."""
    rows = [*trajectories(16), *(given(index, 1, float(index // 4)) for index in range(16))]
    finding = answer(tmp_path, "groups_without_spread", rows)
    assert (finding.status, finding.steps) == ("unhealthy", (1,))
    assert finding.message == "100% of the groups of step 1 teach nothing: all siblings have one reward."


_RIGHT = [True, False] * 32


@pytest.mark.parametrize("kind", ["output", "score", "comment"])
def test_reward_against_the_verdict_is_unhealthy(tmp_path: Path, kind: str) -> None:
    """The verdict is in the verifier's output, in a score of its own, or in the reward's reason."""
    rows = [*trajectories(64)]
    for index, is_right in enumerate(_RIGHT):
        is_bug = index < 24
        reward = float(is_right and not is_bug)
        comment = {"score_comment": "The answer is correct." if is_right else "Wrong number."}
        rows.append(given(index, 1, reward, **(comment if kind == "comment" else {})))
        short = trace(1000 + index)
        if kind == "output":
            judged = f'{{"score":{reward},"correct":{str(is_right).lower()}}}'
            rows.append(row(short, f"d{index}", "a" + short, kind="EVALUATOR", output=judged))
        if kind == "score":
            rows.append(
                given(index, 1, float(is_right), score_name="acc") | {"span_id": f"f{index}".zfill(16)}
            )
    finding = answer(tmp_path, "reward_disagrees", rows)
    assert (finding.status, finding.steps) == ("unhealthy", (1,))
    assert (
        finding.message
        == "19% of the trajectories of step 1 have a reward that contradicts the verifier's verdict."
    )


def test_reward_that_is_inverted_is_unhealthy(tmp_path: Path) -> None:
    """Right answers get less than wrong ones, from the first step on."""
    rows = [*trajectories(64)]
    for index, is_right in enumerate(_RIGHT):
        rows.append(given(index, 1, -float(is_right), score_comment="correct" if is_right else "incorrect"))
    finding = answer(tmp_path, "reward_disagrees", rows)
    assert finding.status == "unhealthy"
    assert finding.message.startswith("The usual reward is -1 if the verifier says that the answer is right")


def test_shaped_reward_agrees_with_the_verdict(tmp_path: Path) -> None:
    """A bonus for the format and a penalty for the length do not contradict the verifier."""
    rows = [*trajectories(64)]
    for index, is_right in enumerate(_RIGHT):
        reward = float(is_right) + 0.1 - index / 400
        rows.append(given(index, 1, reward, score_comment="correct" if is_right else "incorrect"))
    assert answer(tmp_path, "reward_disagrees", rows).status == "healthy"
