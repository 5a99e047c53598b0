"""Rewards: what is missing, constant, without spread, or against a verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.look.analysis.health.checks import chosen, health_of
from otel_rollout.look.analysis.run_choice import run_of
from otel_rollout.table.query import Engine
from tests.analysis.health.answers import answer, answer_of, given, trace, trajectories
from tests.table.tables import row, written


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
    assert finding.message == (
        "8 of the 8 trajectories that ended without an error in step 2 (100%) have no reward."
    )


def test_sentence_names_steps_without_a_number_if_it_counts_their_trajectories(tmp_path: Path) -> None:
    """The eight trajectories of the warm-up are in the count, so they are in the words."""
    warm_up = [each | {"step": None, "step_text": "warm-up"} for each in trajectories(8, step=3)]
    rows = [*trajectories(8), *(given(index, 1, index / 8) for index in range(8)), *trajectories(8, step=2)]
    finding = answer(tmp_path, "reward_missing", [*rows, *warm_up])
    assert finding.steps == (2,)
    assert finding.message == (
        "16 of the 16 trajectories that ended without an error in step 2 and those without a number (100%) "
        "have no reward."
    )


def test_newest_step_that_still_runs_has_no_missing_reward(tmp_path: Path) -> None:
    """Its rewards may follow."""
    running = row(trace(9000), "b", "ff", kind="LLM", step=2, sample_index="5")
    first = [*trajectories(8), *(given(index, 1, index / 8) for index in range(8))]
    assert answer(tmp_path, "reward_missing", [*first, *trajectories(8, step=2), running]).status == "healthy"


def test_reward_of_1e150_is_no_reward_to_compare(tmp_path: Path) -> None:
    """It is left out as in `report`: its square is no number."""
    rows = [*trajectories(9), *(given(index, 1, index / 8) for index in range(8)), given(8, 1, 1e200)]
    finding = answer(tmp_path, "reward_constant", rows)
    assert finding.message == "Rewards are between 0 and 0.875; no step has only one."
    assert answer(tmp_path / "missing", "reward_missing", rows).status == "healthy"


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


def test_step_whose_few_rewards_are_equal_is_named(tmp_path: Path) -> None:
    """It is too small to judge, and the sentence must not deny it."""
    rows = [*trajectories(8), *(given(index, 1, index / 8) for index in range(8))]
    rows += [*trajectories(4, 2), *(given(index, 2, 0.5) for index in range(4))]
    store = written(tmp_path / "table", rows)
    assert answer_of(store, "reward_constant").message == (
        "Rewards are between 0 and 0.875; within step 2 all are equal, which may be chance."
    )
    engine = Engine(store.open())
    (finding,) = health_of(engine, run_of(engine), chosen(["reward_constant"]), "step = 2").findings
    assert (finding.status, finding.message) == ("healthy", "All 4 rewards are 0.5, which may be chance.")


def test_constant_rewards_beyond_the_third_are_counted(tmp_path: Path) -> None:
    """Each of five steps has one of its own."""
    rows = [row for step in range(1, 6) for row in trajectories(16, step)]
    rows += [given(index, step, float(step)) for step in range(1, 6) for index in range(16)]
    finding = answer(tmp_path, "reward_constant", rows)
    assert finding.message.startswith("All 80 rewards of steps 1–5 are 1, 2, 3, and 2 more: ")


def test_one_trajectory_has_no_constant_reward(tmp_path: Path) -> None:
    """One reward says nothing."""
    assert answer(tmp_path, "reward_constant", [*trajectories(1), given(0, 1, 1.0)]).status == "unobserved"


def test_groups_whose_siblings_agree_teach_nothing(tmp_path: Path) -> None:
    """All groups have one reward each, though groups differ."""
    rows = [*trajectories(16), *(given(index, 1, float(index // 4)) for index in range(16))]
    finding = answer(tmp_path, "groups_without_spread", rows)
    assert (finding.status, finding.steps) == ("unhealthy", (1,))
    assert finding.message == (
        "4 of the 4 groups with two rewards or more in step 1 (100%) have one reward for all siblings, "
        "which teaches nothing."
    )
    assert finding.look_at == ("group", tuple(name.rpartition("/")[0] for name in finding.evidence))
    assert replace(finding, name="reward_missing").look_at == ("show", finding.evidence)


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
    assert finding.message == (
        "12 of the 32 trajectories that the verifier calls correct in step 1 (38%) have a reward of at most "
        "0, the usual one of incorrect answers."
    )


def test_reward_bug_is_found_while_few_answers_are_right(tmp_path: Path) -> None:
    """Its share is of the answers with one verdict, so that wrong answers do not hide it."""
    rows = []
    for step in range(1, 13):
        rows += [*trajectories(128, step)]
        right = 64 if step < 9 else 16
        for index in range(128):
            is_bug = step > 4 and index < right and index % 4 == 0
            comment = "correct" if index < right else "incorrect"
            rows.append(given(index, step, float(index < right and not is_bug), score_comment=comment))
    finding = answer(tmp_path, "reward_disagrees", rows)
    assert (finding.status, finding.steps) == ("unhealthy", tuple(range(5, 13)))


def test_wrong_answers_with_the_reward_of_right_ones_are_found(tmp_path: Path) -> None:
    """The message names them, and not the right ones."""
    rows = [*trajectories(64)]
    for index, is_right in enumerate(_RIGHT):
        reward = float(is_right or index % 4 == 1)
        rows.append(given(index, 1, reward, score_comment="correct" if is_right else "incorrect"))
    finding = answer(tmp_path, "reward_disagrees", [*rows, *_more_wrong()])
    assert finding.message == (
        "16 of the 64 trajectories that the verifier calls incorrect in step 1 (25%) have a reward of at "
        "least 1, the usual one of correct answers."
    )


def _more_wrong() -> list[dict[str, Any]]:
    more = list(trajectories(96))[64:]
    return [*more, *(given(index, 1, 0.0, score_comment="incorrect") for index in range(64, 96))]


def test_reward_that_is_inverted_is_unhealthy(tmp_path: Path) -> None:
    """Right answers get less than wrong ones, from the first step on."""
    rows = [*trajectories(64)]
    for index, is_right in enumerate(_RIGHT):
        rows.append(given(index, 1, -float(is_right), score_comment="correct" if is_right else "incorrect"))
    finding = answer(tmp_path, "reward_disagrees", rows)
    assert finding.status == "unhealthy"
    assert finding.message.startswith("The usual reward is -1 if the verifier says that the answer is right")


def test_evidence_against_the_verdict_is_of_each_step_in_order(tmp_path: Path) -> None:
    """A person who looks again finds the same trajectories."""
    rows = []
    for step in range(1, 9):
        rows += [*trajectories(64, step)]
        for index, is_right in enumerate(_RIGHT):
            comment = "correct" if is_right else "incorrect"
            rows.append(given(index, step, -float(is_right), score_comment=comment))
    finding = answer(tmp_path, "reward_disagrees", rows)
    assert [name.partition("/")[0] for name in finding.evidence[:8]] == [str(step) for step in range(1, 9)]


def test_shaped_reward_agrees_with_the_verdict(tmp_path: Path) -> None:
    """A bonus for the format and a penalty for the length do not contradict the verifier."""
    rows = [*trajectories(64)]
    for index, is_right in enumerate(_RIGHT):
        reward = float(is_right) + 0.1 - index / 400
        rows.append(given(index, 1, reward, score_comment="correct" if is_right else "incorrect"))
    assert answer(tmp_path, "reward_disagrees", rows).status == "healthy"


def test_few_verdicts_are_counted_and_not_compared(tmp_path: Path) -> None:
    """Three wrong answers, and three wrong and two right ones, say too little."""
    verdicts = ("incorrect",) * 3 + ("correct",) * 2
    for number, right in ((3, 0), (5, 2)):
        scores = [given(index, 1, 0.0, score_comment=verdicts[index]) for index in range(number)]
        finding = answer(tmp_path / str(number), "reward_disagrees", [*trajectories(number), *scores])
        assert finding.status == "unobserved"
        assert f"{right} say that the answer is right, and 3 that it is wrong: to compare" in finding.message


def test_trajectories_without_a_step_need_a_reward_too(tmp_path: Path) -> None:
    """Nothing runs, so nothing may follow."""
    rows = [each | {"step": None} for each in trajectories(8)]
    rows += [given(index, 1, 0.5) | {"step": None} for index in range(4)]
    finding = answer(tmp_path, "reward_missing", rows)
    assert finding.status == "unhealthy"
    assert finding.message.startswith("4 of the 8 trajectories")


@pytest.mark.parametrize(
    "identity",
    [{"step": None, "step_text": "warm-up"}, {"sample_index": None}],
    ids=["step of text", "no dataset row"],
)
def test_trajectories_that_are_no_siblings_have_no_spread(tmp_path: Path, identity: dict[str, Any]) -> None:
    """Steps whose names are texts have groups of their own, and without a dataset row there is no group."""

    def of(step: int) -> dict[str, Any]:
        name = {"step_text": f"epoch-{step}"} if "step_text" in identity else {}
        return {"sample_index": "0", "rollout_n": 0, **identity, **name}

    rows = [each | of(step) for step in range(1, 9) for each in trajectories(1, step)]
    rows += [given(0, step, 0.5) | of(step) for step in range(1, 9)]
    assert answer(tmp_path, "groups_without_spread", rows).status != "unhealthy"
