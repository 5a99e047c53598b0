"""`otel-rollout list` finds trajectories by what training made of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import otel_rollout
from tests.cli.test_table import rows, run
from tests.table.tables import root, row, written
from tests.table.training_rows import trained


def outcome_of(number: int) -> dict[str, Any]:
    return {
        "advantage": number / 8 - 0.5,
        "trained": number != 3,
        "policy_lag": number,
        "logprob_diff_max": number / 8,
        "logprob_diff_turn": 2,
    }


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of six trajectories with the trainer's scores, and one without."""
    path = tmp_path_factory.mktemp("tables") / "table"
    spans = [row for n in range(6) for row in trained(n, 5, outcome_of(n), reason="overlong")]
    written(path, [*spans, *trained(6, 5, policy_version_min=2)])
    return path


def listed(table: Path, *arguments: str) -> list[str]:
    return [each[0] for each in rows(run("list", "--from", table, *arguments).output)]


def test_filtered_lists_those_that_the_loss_left_out_with_the_reason(table: Path) -> None:
    """A trajectory that the trainer passed over, as it named others of the step, is among them."""
    printed = run("list", "--from", table, "--filtered").output
    found, passed_over = rows(printed)
    assert found[0] == "5/0/3"
    assert found[-6:] == ["false", "overlong", "-0.125", "3", "0.375", "2"]
    assert passed_over[0] == "5/1/2"
    assert "the trainer did not name it" in printed


def test_trajectories_without_the_trainers_word_may_wait_for_it(tmp_path: Path) -> None:
    """Scores of the newest step may follow while the run runs; a failed or validated one is not expected."""
    named = {"trained": True}
    spans = [*trained(0, 1, named), *trained(1, 1), *trained(2, 2, named), *trained(3, 2)]
    spans += [*trained(4, 3), *trained(5, 1, status="error"), *trained(6, 1, validate=True)]
    written(tmp_path / "ended", spans)
    assert listed(tmp_path / "ended", "--filtered") == ["1/0/1", "2/0/3"]
    written(tmp_path / "running", [*spans, row("99", "b1", "a99", step=3, kind="LLM", validate=False)])
    assert listed(tmp_path / "running", "--filtered") == ["1/0/1"]


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        (["--lag", ">3"], ["5/1/0", "5/1/1"]),
        (["--lag", "3"], ["5/0/3"]),
        (["--mismatch", ">0.5", "--lag", "0-9"], ["5/1/1"]),
        (["--filtered", "--mismatch", ">0.5"], []),
        (["--sort", "-mismatch", "--limit", "2"], ["5/1/1", "5/1/0"]),
        (["--where", "advantage >= 0 AND trained"], ["5/1/0", "5/1/1"]),
    ],
)
def test_numbers_choose_trajectories(table: Path, arguments: list[str], paths: list[str]) -> None:
    """Conditions hold together; the lag is the trainer's alone, where it gave any."""
    assert listed(table, *arguments) == paths


def test_list_that_asks_nothing_of_training_has_its_usual_columns(table: Path) -> None:
    """The join costs only who asks for it."""
    assert "mismatch" not in run("list", "--from", table).output
    assert "tool_errors" in run("list", "--from", table).output


def test_file_has_every_column_of_training(table: Path) -> None:
    """JSON has what the printed table leaves out."""
    found, _ = json.loads(run("list", "--from", table, "--filtered", "--format", "json").output)
    assert (found["trained"], found["reason"], found["lag_source"]) == (False, "overlong", "trainer")
    assert found["tool_calls"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lag", "two"], "--lag 'two' cannot be read: write a number (3), a range (1-3)"),
        (["--mismatch", "3-1"], "--mismatch '3-1' ends before it begins"),
    ],
)
def test_wrong_condition_is_one_line(table: Path, arguments: list[str], said: str) -> None:
    """It names the option, and the forms that can be read."""
    printed = run("list", "--from", table, *arguments, code=2).output
    assert printed.startswith(said)
    assert printed.count("\n") == 1


def test_empty_list_says_that_no_trainer_has_spoken(tmp_path: Path, table: Path) -> None:
    """Nothing filtered, and nothing known, are two things."""
    written(tmp_path / "table", [root("1")])
    nobody = "no trajectory is like that; no score says what training made of a trajectory"
    assert nobody in run("list", "--from", tmp_path / "table", "--filtered").output
    assert (
        "no trajectory is like that\n" in run("list", "--from", table, "--filtered", "--reward", ">2").output
    )


def test_python_has_the_same_filters(table: Path) -> None:
    """The view `training` is narrowed by value, and narrows other views by SQL."""
    opened = otel_rollout.open_table(table)
    (found,) = opened.training.filter(trained=False, lag=">2", mismatch="<1").dicts()
    assert (found["reason"], found["sample_index"], found["rollout_n"]) == ("overlong", "0", 3)
    chosen = opened.trajectories.where("trace_id IN (SELECT trace_id FROM training WHERE mismatch > 0.5)")
    assert [each["path"] for each in chosen] == ["5/1/1"]


def test_number_that_is_not_finite_is_named(tmp_path: Path) -> None:
    """NaN meets no comparison; the column `not_finite` has the score's name."""
    written(tmp_path / "table", trained(0, 1, {"advantage": math.nan, "logprob_diff_max": math.inf}))
    (found,) = otel_rollout.open_table(tmp_path / "table").training.dicts()
    assert (found["advantage"], found["mismatch"]) == (None, None)
    assert found["not_finite"] == "logprob_diff_max"


def test_lag_is_of_one_numbering_in_a_run(tmp_path: Path) -> None:
    """Without the trainer's word for any trajectory, step and version of the weights make it."""
    old = {"policy_version_min": 2}
    rows_ = [*trained(0, 5, {"policy_lag": 1}, run_id="a", **old), *trained(1, 6, run_id="a", **old)]
    written(tmp_path / "table", [*rows_, *trained(2, 5, run_id="b", **old)])
    found = otel_rollout.open_table(tmp_path / "table").training.dicts()
    lags = {each["rollout_n"]: (each["lag"], each["lag_source"]) for each in found}
    assert lags == {0: (1.0, "trainer"), 1: (None, None), 2: (3.0, "step")}


def test_signed_differences_are_magnitudes_and_a_share_above_one_is_none(tmp_path: Path) -> None:
    """A trainer may give differences with their sign, or percent instead of a share."""
    scores = {"logprob_diff_mean": -0.15, "logprob_diff_max": -0.6, "logprob_diff_share": 50.0}
    written(tmp_path / "table", trained(0, 1, scores))
    (found,) = otel_rollout.open_table(tmp_path / "table").training.dicts()
    assert (found["mismatch_mean"], found["mismatch"], found["mismatch_share"]) == (0.15, 0.6, None)
