"""The checks of what training made of trajectories say what they found, and where."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.base.training_scores import NUMBERS, UNUSED
from otel_rollout.look.analysis.health.findings import Finding
from otel_rollout.table.training import FILTERED
from tests.analysis.health.answers import answer, answer_of
from tests.table.tables import START_NS, asked, root, row, score, written
from tests.table.training_rows import outcome, trained

CHECKS = (
    "sampler_mismatch",
    "training_lag",
    "training_left_out",
    "trained_reward_differs",
    "training_not_finite",
    "scores_unresolved",
)
HINT = (
    " That is no fault if OTEL_TRACES_SAMPLER, a sampler of the application or OTEL_ROLLOUT_SAMPLE_GROUPS "
    "left the trajectory out; OTEL_ROLLOUT_SAMPLE_RATE leaves out the scores, too."
)
"""A trajectory that was not recorded is unknown to the table, whoever decided so."""


def steps(
    number: int, scores: dict[str, Any], faulty: dict[str, Any], begin: int = 4, **columns: Any
) -> list[dict[str, Any]]:
    """Return the rows of 16 trajectories a step, of which every other has faulty scores from a step on."""
    return [
        row
        for step in range(1, number + 1)
        for place in range(16)
        for row in trained(
            step * 16 + place,
            step,
            faulty if step >= begin and place % 2 else scores,
            reward=place / 16,
            **columns,
        )
    ]


def found(path: Path, check: str, rows: list[dict[str, Any]]) -> Finding:
    return answer(path, check, rows)


@pytest.mark.parametrize("check", CHECKS)
def test_run_without_the_trainers_scores_is_unobserved(tmp_path: Path, check: str) -> None:
    """A rollout with rewards says nothing of the training."""
    finding = found(tmp_path, check, list(trained(0, 1)))
    assert finding.status == "unobserved"
    assert not finding.evidence


def test_mismatch_names_the_turn(tmp_path: Path) -> None:
    """The sampler's log probabilities are off by a constant in the second turn."""
    good = {"logprob_diff_mean": 0.01, "logprob_diff_max": 0.3, "logprob_diff_turn": 1}
    bad = {"logprob_diff_mean": 0.15, "logprob_diff_max": 0.6, "logprob_diff_turn": 2}
    finding = found(tmp_path, "sampler_mismatch", steps(6, good, bad))
    assert (finding.status, finding.steps) == ("unhealthy", (4, 5, 6))
    assert "The mean difference is 0.08 nats, the largest of a token 0.6." in finding.message
    assert finding.message.endswith("is in turn 2 in 24 of the 24 whose turn is known.")
    assert {path.split("/")[0] for path in finding.evidence} == {"4", "5", "6"}


def test_mismatch_that_is_told_by_its_share_alone_counts_as_in_report(tmp_path: Path) -> None:
    """The largest difference and its turn are of all trajectories that were compared."""
    by_mean = {"logprob_diff_mean": 0.2, "logprob_diff_max": 0.5}
    by_share = {"logprob_diff_share": 0.5, "logprob_diff_max": 9.0, "logprob_diff_turn": 3}
    scores = [by_mean | {"logprob_diff_turn": 2}, *[by_mean] * 5, *[by_share] * 4]
    rows = [row for n, each in enumerate(scores) for row in trained(n, 1, each)]
    finding = found(tmp_path, "sampler_mismatch", rows)
    assert finding.message.endswith(
        " The mean difference is 0.2 nats, the largest of a token 9. The token with the largest difference "
        "is in turn 3 in 4 of the 5 whose turn is known."
    )
    rows = [row for n, each in enumerate(scores[6:]) for row in trained(n, 1, each)]
    finding = found(tmp_path / "share", "sampler_mismatch", rows)
    assert "0.1. The largest difference of a token is 9. The token" in finding.message


def test_mismatch_of_a_whole_run_is_found_by_its_size(tmp_path: Path) -> None:
    """There is no earlier step to compare with."""
    bad = {"logprob_diff_mean": 0.2}
    assert found(tmp_path, "sampler_mismatch", steps(2, bad, bad)).status == "unhealthy"


def test_share_of_tokens_is_enough(tmp_path: Path) -> None:
    """A trainer may give the share alone."""
    shares = ({"logprob_diff_share": 0.01}, {"logprob_diff_share": 0.3})
    finding = found(tmp_path, "sampler_mismatch", steps(6, *shares))
    assert (finding.status, finding.steps) == ("unhealthy", (4, 5, 6))


def test_stale_policy_is_found_by_the_trainers_lag(tmp_path: Path) -> None:
    """The versions of the rollout are not needed."""
    finding = found(tmp_path, "training_lag", steps(6, {"policy_lag": 1}, {"policy_lag": 9}))
    assert (finding.status, finding.steps) == ("unhealthy", (4, 5, 6))
    assert "The mean is 5, the greatest 9; in the run, a quarter has 1 or less." in finding.message


def test_huge_numbers_of_the_trainer_are_in_no_comparison(tmp_path: Path) -> None:
    """As in report: their trajectories count as not compared, and no mean or maximum includes them."""
    huge = {"policy_lag": 1e150, "logprob_diff_mean": -1e200, "logprob_diff_max": 1e200}
    rows = [*trained(0, 1, huge), *trained(1, 1, {"policy_lag": 1.0})]
    lags = found(tmp_path / "lag", "training_lag", rows)
    assert lags.status == "healthy"
    assert lags.message.endswith(" The mean is 1, the greatest 1; in the run, a quarter has 1 or less.")
    assert found(tmp_path / "none", "sampler_mismatch", rows).status == "unobserved"
    rows += trained(2, 1, {"logprob_diff_mean": 0.001, "logprob_diff_max": 0.5})
    differs = found(tmp_path / "some", "sampler_mismatch", rows)
    assert differs.message.endswith(" The mean difference is 0.001 nats, the largest of a token 0.5.")


def test_filter_without_a_reason_is_found(tmp_path: Path) -> None:
    """The message counts what was left out."""
    finding = found(tmp_path, "training_left_out", steps(6, {"trained": True}, {"trained": False}))
    assert (finding.status, finding.steps) == ("unhealthy", (4, 5, 6))
    assert "24 of the 48" in finding.message
    assert "Left out, by reason: no reason given 24." in finding.message


def test_missing_reason_is_named_before_frequent_ones(tmp_path: Path) -> None:
    """Three reasons are named; the one that is missing is of them, however rare."""
    reasons = ["old"] * 5 + ["long"] * 4 + ["odd"] * 3 + [None] * 2
    rows = [
        row
        for n in range(32)
        for row in trained(
            n, 1, {"trained": n >= len(reasons)}, reason=reasons[n] if n < len(reasons) else None
        )
    ]
    finding = found(tmp_path, "training_left_out", rows)
    assert "Left out, by reason: no reason given 2, old 5, long 4, other reasons 3" in finding.message


def test_trajectories_that_the_trainer_passes_over_are_found(tmp_path: Path) -> None:
    """Of the newest step, the trainer may not have spoken yet while the run runs."""
    rows = steps(6, {"trained": True}, {})
    finding = found(tmp_path / "ended", "training_left_out", rows)
    assert (finding.status, finding.steps) == ("unhealthy", (4, 5, 6))
    assert "the trainer did not name it 24" in finding.message
    rows.append(row("99", "b1", "a99", step=7, kind="LLM", validate=False))
    finding = found(tmp_path / "running", "training_left_out", rows)
    assert (finding.status, finding.steps) == ("unhealthy", (4, 5))
    assert "the trainer did not name it 16" in finding.message


def test_trajectories_left_out_are_those_that_list_and_report_count(tmp_path: Path) -> None:
    """A step of which the trainer named nobody is not passed over, also if it named some of a later step."""
    rows = steps(6, {"trained": True}, {})
    store = written(tmp_path / "table", [of for of in rows if of["step"] != 4 or not of.get("score_name")])
    finding = answer_of(store, "training_left_out")
    assert len(asked(store, f"SELECT trace_id FROM training WHERE {FILTERED}")) == 16
    assert finding.steps == (5, 6)
    assert "16 of the 32" in finding.message
    assert finding.message.endswith("Left out, by reason: the trainer did not name it 16.")


def test_reasons_count_steps_without_a_number_if_the_sentence_does(tmp_path: Path) -> None:
    """The reasons are of the trajectories that the sentence before counts."""
    rows = [
        each | ({"step": None, "step_text": "warm-up"} if each["step"] == 2 else {})
        for each in steps(2, {"trained": True}, {"trained": False}, begin=1)
    ]
    finding = found(tmp_path, "training_left_out", rows)
    assert finding.message.startswith("16 of the 32 trajectories"), finding.message
    assert "in step 1 and those without a number (50%)" in finding.message
    assert "Left out, by reason: no reason given 16." in finding.message


@pytest.mark.parametrize(
    ("reason", "reward", "spent"),
    [(UNUSED, None, ""), ("masked", 0.0, "; 10 of these 10 are of groups with one reward")],
)
def test_end_of_training_and_groups_with_one_reward_are_no_fault(
    tmp_path: Path, reason: str, reward: float | None, spent: str
) -> None:
    """A buffer is left over at the end; a mask takes nothing from a group without a spread."""
    rows = [
        row
        for n in range(16)
        for row in trained(
            n, 1, {"trained": n >= 10}, reason=reason, reward=n / 16 if reward is None else reward
        )
    ]
    finding = found(tmp_path, "training_left_out", rows)
    assert finding.status == "healthy"
    assert f"Left out, by reason: {reason} 10{spent}." in finding.message


def test_filter_with_a_reason_is_found_with_it(tmp_path: Path) -> None:
    """Half of a step is too much, whatever the reason."""
    rows = steps(6, {"trained": True}, {"trained": False}, reason="too old")
    finding = found(tmp_path, "training_left_out", rows)
    assert (finding.status, finding.steps) == ("unhealthy", (4, 5, 6))
    assert "Left out, by reason: too old 24." in finding.message


def test_groups_with_one_reward_may_be_left_out_for_a_reason(tmp_path: Path) -> None:
    """Dynamic sampling loses nothing with them; a group with several rewards is another matter."""
    filtered = {"trained": False}
    rows = [
        row
        for step in range(1, 6)
        for n in range(16)
        for row in trained(
            step * 16 + n,
            step,
            filtered if n < 12 else {"trained": True},
            reward=0.0 if n < 12 else n / 16,
            reason="no spread",
        )
    ]
    finding = found(tmp_path, "training_left_out", rows)
    assert finding.status == "healthy"
    assert finding.message.endswith(
        "no spread 60; 60 of these 60 are of groups with one reward. Whole groups left out: 15, 15 of them "
        "with one reward."
    )


def test_sibling_that_the_trainer_did_not_name_tells_whether_its_group_has_one_reward(tmp_path: Path) -> None:
    """The third one failed with another reward, so the group had something to teach."""
    rows = [
        row
        for n in range(16)
        for row in trained(
            n,
            1,
            None if n % 4 == 2 else {"trained": False},
            reward=float(n % 4 != 2),
            reason="too long",
            status="error" if n % 4 == 2 else "ok",
        )
    ]
    store = written(tmp_path / "table", rows)
    assert answer_of(store, "groups_without_spread").message.startswith("In all 4 groups")
    assert asked(store, "SELECT path FROM groups WHERE reward_spread = 0") == []
    finding = answer_of(store, "training_left_out")
    assert finding.message.startswith("12 of the 12 trajectories that the trainer spoke of in step 1 (100%)")
    assert finding.message.endswith(
        "Left out, by reason: too long 12. Whole groups left out: 4, 0 of them with one reward."
    )


def test_trajectories_without_a_dataset_row_are_no_group_with_one_reward(tmp_path: Path) -> None:
    """They are not siblings, in one step or in several."""
    rows = [
        {**row, "sample_index": None, "rollout_n": None, "step": step}
        for step in (1, 2)
        for n in range(4)
        for name in (f"{step}{n}",)
        for row in (
            root(name),
            score(name, f"d{name}", 1.0),
            score(name, f"e{name}", 0.0, score_name="trained", score_label="False", score_comment="too long"),
        )
    ]
    finding = found(tmp_path, "training_left_out", rows)
    assert finding.message.startswith("8 of the 8 trajectories that the trainer spoke of"), finding.message
    assert finding.message.endswith("Left out, by reason: too long 8.")


def test_reasons_beyond_the_third_are_counted(tmp_path: Path) -> None:
    """A sentence that names three of five must not read as complete."""
    reasons = [f"reason {n // 4}" for n in range(20)]
    rows = [row for n, why in enumerate(reasons) for row in trained(n, 1, {"trained": False}, reason=why)]
    finding = found(tmp_path, "training_left_out", rows)
    assert "by reason: reason 0 4, reason 1 4, reason 2 4, other reasons 8. Whole" in finding.message


def test_reward_that_was_trained_on_and_not_recorded_is_found(tmp_path: Path) -> None:
    """One trajectory is enough; a KL penalty that is known is no difference."""
    same = {"trained_reward": 0.25, "kl_penalty": 0.25}
    rows = [row for n in range(8) for row in trained(n, 1, same, reward=0.5)]
    finding = found(tmp_path / "same", "trained_reward_differs", rows)
    assert (finding.status, finding.evidence) == ("healthy", ())
    rows += trained(8, 2, same, reward=1.0)
    finding = found(tmp_path / "other", "trained_reward_differs", rows)
    assert (finding.status, finding.steps, finding.evidence) == ("unhealthy", (2,), ("2/2/0",))
    assert "In 1 of 1 trajectories (100%) in step 2" in finding.message
    assert "trained on 0.25 after a KL penalty of 0.25, and 1 was recorded." in finding.message


@pytest.mark.parametrize(("recorded", "used"), [(1e300, 2.0), (math.nan, 2.0), (0.5, 1e300), (0.5, math.nan)])
def test_rewards_that_are_no_usual_numbers_are_not_compared(
    tmp_path: Path, recorded: float, used: float
) -> None:
    """They are counted as NaN, infinite or huge."""
    rows = trained(0, 1, {"trained_reward": used}, reward=recorded)
    assert found(tmp_path, "trained_reward_differs", rows).status == "unobserved"


@pytest.mark.parametrize("penalty", [math.nan, "nan", math.inf, 1e300, "unknown"])
def test_reward_after_a_penalty_that_is_no_usual_number_is_not_compared(tmp_path: Path, penalty: Any) -> None:
    """What the penalty took off is unknown, also where it is a text."""
    rows = trained(0, 1, {"trained_reward": 0.25, "kl_penalty": penalty}, reward=0.5)
    assert found(tmp_path, "trained_reward_differs", rows).status == "unobserved"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_advantage_that_is_not_finite_is_found(tmp_path: Path, value: float) -> None:
    """One is enough, and its name is said."""
    rows = [*trained(0, 1, {"advantage": 0.5}), *trained(1, 1, {"advantage": value})]
    finding = found(tmp_path, "training_not_finite", rows)
    assert (finding.status, finding.evidence) == ("unhealthy", ("1/0/1",))
    assert finding.message.endswith(f"NaN, infinite or huge: `advantage` is {value} in 1.")


def test_each_number_that_is_not_finite_is_named_with_its_values(tmp_path: Path) -> None:
    """A trajectory may have several; it counts once."""
    rows = [
        *trained(0, 1, {"advantage": math.nan, "return": math.inf}),
        *trained(1, 1, {"advantage": -math.inf}),
        *trained(2, 2, {"advantage": 0.5}),
    ]
    finding = found(tmp_path, "training_not_finite", rows)
    assert finding.message == (
        "In 2 of 2 trajectories (100%) in step 1, a number of the trainer is NaN, infinite or huge: "
        "`advantage` is -inf or nan in 2, `return` is inf in 1."
    )


def test_text_in_place_of_a_number_is_named_as_a_text(tmp_path: Path) -> None:
    """It is not finite either, but nobody has divided by zero."""
    rows = [*trained(0, 1, {"trained": "yes", "advantage": "x" * 200}), *trained(1, 1, {"return": math.nan})]
    finding = found(tmp_path, "training_not_finite", rows)
    assert (finding.status, finding.evidence) == ("unhealthy", ("1/0/1", "1/0/0"))
    assert finding.message == (
        "In 1 of 2 trajectories (50%) in step 1, a number of the trainer is NaN, infinite or huge: "
        "`return` is nan in 1. In 1 of 2 trajectories (50%) in step 1, a score of the trainer is a text, "
        "not a number: "
        f'`advantage` is "{"x" * 40}" in 1, `trained` is "yes" in 1.'
    )
    only_text = found(tmp_path / "text", "training_not_finite", rows[:4])
    assert "infinite" not in only_text.message


def test_texts_beyond_the_third_are_counted(tmp_path: Path) -> None:
    """The sentence says that there are others."""
    rows = [row for n, text in enumerate("wxyzw") for row in trained(n, 1, {"advantage": text})]
    finding = found(tmp_path, "training_not_finite", rows)
    assert finding.message.endswith('`advantage` is "w" or "x" or "y" or 1 more in 5.')


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_of_the_trainer_is_looked_at(tmp_path: Path, name: str) -> None:
    """Also by the view, whose column names one."""
    rows = list(trained(0, 1, {name: math.nan}))
    assert f"`{name}` is nan in 1." in found(tmp_path, "training_not_finite", rows).message
    assert asked(written(tmp_path / "view", rows), "SELECT not_finite FROM training") == [
        {"not_finite": name}
    ]


def test_scores_that_belong_to_no_trajectory_are_named_by_reason(tmp_path: Path) -> None:
    """Of a step that was tried again, the trajectories with one identity are the evidence."""
    again = {"step": 3, "sample_index": "4", "rollout_n": 1}
    rows = [
        *trained(0, 1, {"advantage": 0.5}),
        *outcome({"advantage": 0.5, "trained": True}, step=2, sample_index="9", rollout_n=7),
        *(root(name, **again) for name in ("71", "72")),
        *outcome({"advantage": 0.5}, **again),
    ]
    finding = found(tmp_path, "scores_unresolved", rows)
    assert (finding.status, finding.steps) == ("unhealthy", (2, 3))
    assert finding.message == (
        "3 of 3 scores by identity, in steps 2–3, belong to no trajectory. 1 identity is unknown, because no "
        f"trajectory has it: `advantage` of 2/9/7.{HINT} 1 identity is ambiguous, because several "
        "trajectories have it: `advantage` of 3/4/1."
    )
    assert [trace.lstrip("0") for trace in finding.evidence] == ["71", "72"]


def test_evidence_of_unresolved_scores_leaves_out_what_is_ambiguous_in_another_run(tmp_path: Path) -> None:
    """A run that tried another step again has its own scores, though the trajectories have equal names."""
    again, resolved = ({"step": step, "sample_index": "4", "rollout_n": 1} for step in (3, 5))
    earlier = {"run_id": "earlier", "start_ns": START_NS - 1}
    rows = [
        *(root(name, **again) for name in ("71", "72")),
        *outcome({"advantage": 0.5}, **again),
        root("73", **resolved),
        *(root(name, **resolved, **earlier) for name in ("61", "62")),
        *outcome({"advantage": 0.5}, **resolved, run_id="earlier"),
    ]
    finding = found(tmp_path, "scores_unresolved", rows)
    assert finding.message.startswith("1 of 1 scores by identity, in step 3, ")
    assert [trace.lstrip("0") for trace in finding.evidence] == ["71", "72"]


def test_scores_of_several_unknown_trajectories_are_named_in_the_plural(tmp_path: Path) -> None:
    """The sentence agrees with the number of identities."""
    unknown = [
        each
        for number in range(5)
        for each in outcome({"advantage": 0.5}, step=1, sample_index=str(90 + number), rollout_n=0)
    ]
    finding = found(tmp_path, "scores_unresolved", [*trained(0, 1), *unknown])
    assert (
        "5 identities are unknown, because no trajectory has them: `advantage` of 1/90/0, `advantage` of "
        "1/91/0, `advantage` of 1/92/0, and 2 more." in finding.message
    )


def test_scores_of_unknown_steps_that_are_texts_are_named_by_what_they_say(tmp_path: Path) -> None:
    """Each text is an identity of its own; chosen steps have their own scores alone."""
    named = [
        {"step": None, "step_text": "alpha", "sample_index": "0", "rollout_n": 0},
        {"step": None, "step_text": "beta", "sample_index": "0", "rollout_n": 0},
        {"step": 1, "sample_index": "9", "rollout_n": None, "rollout_text": "beam"},
    ]
    rows = [*trained(0, 1), root("77", step=None, step_text="beta", sample_index="5")]
    rows += [each for identity in named for each in outcome({"reward": 1.0}, **identity)]
    store = written(tmp_path / "table", rows)
    message = answer_of(store, "scores_unresolved").message
    assert "3 identities are unknown" in message
    assert all(f"`reward` of {path}" in message for path in ("alpha/0/0", "beta/0/0", "1/9/beam"))
    of_beta = answer_of(store, "scores_unresolved", "step_text = 'beta'").message
    assert of_beta.startswith("1 of 1 scores by identity")
    unresolved = asked(store, "SELECT * FROM unresolved_scores")
    assert {(each["step_text"], each["rollout_text"]) for each in unresolved} == {
        ("alpha", None), ("beta", None), (None, "beam"),
    }  # fmt: skip


def test_all_scores_that_are_attached_are_healthy(tmp_path: Path) -> None:
    """They are counted."""
    finding = found(tmp_path, "scores_unresolved", list(trained(0, 1, {"advantage": 0.5, "trained": True})))
    assert finding.message == "All 2 scores by identity belong to a trajectory."


def test_attached_scores_of_a_judge_with_another_run_are_counted(tmp_path: Path) -> None:
    """It shares project and experiment; only a judge that does not is told to share them."""
    identity = {"step": 1, "sample_index": "0", "rollout_n": 0}
    rows = [
        *trained(0, 1, {"advantage": 0.5, "trained": True}),
        *outcome({"reward": 0.5}, **identity, run_id="judge"),
    ]
    assert found(tmp_path / "a", "scores_unresolved", rows).message == (
        "All 3 scores by identity belong to a trajectory."
    )
    unknown = identity | {"sample_index": "9"}
    rows += outcome({"reward": 0.5}, **unknown, run_id="judge of row 9")
    rows += outcome({"reward": 0.5}, **unknown, run_id="other judge", experiment="other")
    message = found(tmp_path / "b", "scores_unresolved", rows).message
    assert message.startswith("2 of 5 scores by identity, in step 1, belong to no trajectory.")
    assert "1 of the scores are of `other judge`" in message


def test_scores_of_a_program_with_another_run_are_found(tmp_path: Path) -> None:
    """A judge that shares neither run nor experiment is named, with what it should share."""
    judge = {"run_id": "judge", "experiment": "other"}
    rows = [*trained(0, 1), *outcome({"reward": 0.5}, step=1, sample_index="0", rollout_n=0, **judge)]
    finding = found(tmp_path, "scores_unresolved", rows)
    assert (finding.status, finding.steps) == ("unhealthy", (1,))
    assert finding.message == (
        "1 of 1 scores by identity, in step 1, belong to no trajectory. 1 identity is unknown, because no "
        f"trajectory has it: `reward` of 1/0/0.{HINT} 1 of the scores are of `judge`, which has no "
        "trajectory: share OTEL_ROLLOUT_RUN_ID or the experiment's name between the programs."
    )
