"""A report has the trainer's numbers beside the rollout's, and says where the two disagree."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from otel_rollout.cli import app
from otel_rollout.look.analysis.report.measures import MEASURES
from otel_rollout.look.analysis.report.page import page_of_report, page_of_step
from otel_rollout.look.analysis.report.report import RunReport, report_of
from otel_rollout.look.analysis.report.step import step_of
from otel_rollout.look.analysis.report.trainer import Trainer
from otel_rollout.look.analysis.run_choice import run_of
from tests.analysis.report.runs_for_reports import engine_of
from tests.table.tables import written
from tests.table.training_rows import trained


def outcome_of(number: int) -> dict[str, Any]:
    """Return what training made of a trajectory whose reward is ``number / 8``."""
    return {
        "advantage": (-1.0) ** number,
        "trained": number % 4 != 3,
        "trained_tokens": 10,
        "trained_reward": number / 8 - 0.25,
        "kl_penalty": 0.25,
        "policy_lag": number % 4,
        "logprob_diff_mean": 0.01,
        "logprob_diff_max": number / 10,
        "logprob_diff_turn": 2,
        "importance_ratio": 1.5,
    }


def report(path: Path, *rows: dict[str, Any]) -> RunReport:
    engine = engine_of(path, *rows)
    return report_of(engine, run_of(engine))


def test_figures_of_a_step_are_exact(tmp_path: Path) -> None:
    """A reward that a KL penalty lowered is the recorded one; the trainer's lag counts, not the step's."""
    rows = [
        row for n in range(4) for row in trained(n, 3, outcome_of(n), reason="overlong", policy_version_min=0)
    ]
    (step,) = report(tmp_path, *rows).steps
    assert step.trainer == Trainer(
        known=4, trained=3, filtered={"overlong": 1}, tokens=40, advantages=4, advantage_magnitude=1.0,
        rewards_compared=4, rewards_differing=0, trained_rewards=4, reward_mean=pytest.approx(-0.0625),
        reward_difference=0.0,
        differing=(), lags=4, lag_mean=1.5, lag_max=3.0, lag_source="trainer", mismatches=4,
        mismatch_mean=pytest.approx(0.01), mismatch_max=pytest.approx(0.3), mismatch_trajectory="3/0/3",
        mismatch_turn=2, importance_ratios=4, importance_ratio=1.5, not_finite=0,
    )  # fmt: skip
    assert step.policy_lag.mean == 3.0


def test_tokens_that_do_not_fit_are_no_figure(tmp_path: Path) -> None:
    """Neither a number of tokens beyond 64 bits nor a sum of such numbers ends the report."""
    rows = [row for n in range(4) for row in trained(n, 3, {"trained_tokens": 2.0**62})]
    rows += [row for n in range(2) for row in trained(n + 4, 4, {"trained_tokens": 2.0**63 * n + 7})]
    figures = [step.trainer for step in report(tmp_path, *rows).steps]
    assert [each and each.tokens for each in figures] == [None, 7]


def test_step_that_no_trainer_has_scored_has_no_figures_of_it(tmp_path: Path) -> None:
    """A reward and a version of the weights are of the rollout."""
    (step,) = report(tmp_path, *trained(0, 1, policy_version_min=0)).steps
    assert step.trainer is None


def test_lag_without_the_trainers_word_is_counted_by_step(tmp_path: Path) -> None:
    """The text says so."""
    rows = [row for n in range(2) for row in trained(n, 5, {"advantage": 0.5}, policy_version_min=3)]
    written(tmp_path / "table", rows)
    ran = CliRunner().invoke(app, ["report", "--from", str(tmp_path / "table")], env={"COLUMNS": "100"})
    assert "2 (max 2, by step)" in ran.output


def test_reward_that_was_trained_on_and_not_recorded_is_found_and_named(tmp_path: Path) -> None:
    """The largest comes first, in text and on the pages; rounding is none. The note counts its steps."""
    rewards = {0: 0.0, 1: 0.125 + 1e-6, 2: 0.9, 3: 0.0, 4: 0.5}
    rows = [row for n, reward in rewards.items() for row in trained(n, 2, {"trained_reward": reward})]
    rows += trained(5, 2, {"trained_reward": 0.3}, reward=None)
    rows += trained(8, 3, {"trained_reward": 1.0})
    engine = engine_of(tmp_path, *rows)
    found = report_of(engine, run_of(engine))
    step = found.steps[0]
    assert step.trainer
    assert (step.trainer.rewards_compared, step.trainer.rewards_differing) == (5, 2)
    assert step.trainer.differing == ("2/0/2", "2/0/3")
    said = "trained reward is not the recorded one: 2 of 5 trajectories, step 2, by up to 0.65"
    pages = (page_of_report(found), page_of_step(step_of(engine, run_of(engine), 2)))
    assert all(said in page and "2/0/2, 2/0/3" in page for page in pages)
    document = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert document["training"][0]["trainer"]["differing"] == ["2/0/2", "2/0/3"]


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e200])
def test_numbers_that_are_not_finite_are_counted_apart(tmp_path: Path, odd: float) -> None:
    """NaN, infinite and huge ones spoil no mean."""
    usual = {"advantage": -0.5, "logprob_diff_max": 0.3}
    rows = [*trained(0, 1, dict.fromkeys(usual, odd)), *trained(1, 1, usual)]
    (step,) = report(tmp_path, *rows).steps
    assert step.trainer
    assert (step.trainer.mismatch_max, step.trainer.mismatch_trajectory) == (0.3, "1/0/1")
    assert (step.trainer.not_finite, step.trainer.advantages, step.trainer.advantage_magnitude) == (1, 1, 0.5)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of eight steps of which the last three lose half of their trajectories."""
    path = tmp_path_factory.mktemp("tables") / "table"
    rows = []
    for step in range(1, 9):
        for number in range(16):
            is_lost = step > 5 and number % 2 == 0
            scores = outcome_of(number) | {
                "trained": not is_lost,
                "logprob_diff_mean": 0.1 * (step > 5) + 0.01,
            }
            rows += trained(step * 16 + number, step, scores, reason="too old", reward=number / 8)
    written(path, rows)
    return path


def test_most_frequent_reasons_have_a_line_each_and_the_others_one(tmp_path: Path) -> None:
    """A trainer may say another text of each trajectory."""
    rows = [
        row
        for number in range(40)
        for row in trained(
            number, 1, {"trained": False}, reason="too old" if number < 5 else f"length {number}", reward=0.5
        )
    ]
    written(tmp_path, rows)
    ran = CliRunner().invoke(app, ["report", "--from", str(tmp_path)], env={"COLUMNS": "100"})
    lines = [line for line in ran.output.splitlines() if line.startswith("not trained, ")]
    assert len(lines) == 11
    assert lines[0] == "not trained, too old: 5 trajectories, step 1"
    assert lines[-1] == "not trained, 26 other reasons: 26 trajectories"


def test_a_reason_of_one_trajectory_may_be_blank(tmp_path: Path) -> None:
    """The line says so, and counts one trajectory."""
    written(tmp_path, trained(1, 1, {"trained": False}, reason=" ", reward=0.5))
    ran = CliRunner().invoke(app, ["report", "--from", str(tmp_path)], env={"COLUMNS": "100"})
    assert "not trained, blank reason: 1 trajectory, step 1\n" in ran.output


def test_terminal_has_curves_a_table_and_the_reasons(table: Path) -> None:
    """The table is at most a hundred columns wide."""
    ran = CliRunner().invoke(app, ["report", "--from", str(table)], env={"COLUMNS": "100"})
    assert ran.exit_code == 0
    assert re.search(r"not trained +▁▁▁▁▁███ +0% → 50%", ran.output)
    assert "not trained, too old: 24 trajectories, steps 6–8" in ran.output
    assert max(map(len, ran.output.splitlines())) <= 100


def test_comparison_names_the_filter_and_its_reason(table: Path) -> None:
    """Shares of the reasons are the causes of the change."""
    arguments = ["report", "--from", str(table), "--compare", "1-5..6-8"]
    ran = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    assert "trajectories not trained on 0% → 50%" in ran.output
    assert "    all too old\n" in ran.output
    assert "mismatch, mean 0.01 → 0.11" in ran.output


def test_page_has_a_chart_of_each_figure(table: Path, tmp_path: Path) -> None:
    """The page stands alone."""
    page = tmp_path / "run.html"
    CliRunner().invoke(app, ["report", "--from", str(table), "--html", str(page)])
    html = page.read_text()
    for title in ("Not trained on", "Magnitude of the advantage", "Mismatch of sampler and trainer, in nats"):
        assert title in html
    assert "What training made of them" in html


def test_column_of_zeros_is_shown(tmp_path: Path) -> None:
    """Zero is a value of the trainer; a column without any is not shown."""
    zeros = {"trained": False, "advantage": 0.0, "trained_reward": 0.0, "policy_lag": 0}
    written(tmp_path / "table", trained(0, 1, zeros, reward=0.0))
    printed = (
        CliRunner().invoke(app, ["report", "--from", str(tmp_path / "table")], env={"COLUMNS": "120"}).output
    )
    headings = next(line for line in printed.splitlines() if "trained" in line and "step" in line)
    names = ("step", "trained", "advantage", "trained reward", "reward differs", "policy lag")
    assert headings.split() == " ".join(names).split()


def test_trajectories_that_the_trainer_passes_over_are_not_trained(tmp_path: Path) -> None:
    """They are counted with their reason."""
    rows = [*trained(0, 1, {"trained": True}), *trained(1, 1)]
    (step,) = report(tmp_path, *rows).steps
    assert step.trainer
    assert (step.trainer.known, step.trainer.trained) == (2, 1)
    assert step.trainer.filtered == {"the trainer did not name it": 1}


def test_mean_of_a_step_counts_as_often_as_it_has_values(tmp_path: Path) -> None:
    """A trainer gives a weight for few trajectories of a step, and mismatches of all."""
    scores = {"logprob_diff_mean": 0.01}
    weights = {1: [2.0, None, None], 2: [1.0, 1.0, None]}
    rows = [
        row
        for step, given in weights.items()
        for n, weight in enumerate(given)
        for row in trained(8 * step + n, step, scores | ({"importance_ratio": weight} if weight else {}))
    ]
    found = [MEASURES["importance_ratio"].of(step) for step in report(tmp_path, *rows).training]
    assert [value and (value.value, value.count) for value in found] == [(2.0, 1), (1.0, 2)]
