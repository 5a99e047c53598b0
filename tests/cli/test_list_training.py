"""`otel-rollout list` finds trajectories by what training made of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import otel_rollout
from tests.cli.test_table import rows, run
from tests.table.tables import root, written
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
    """A trajectory of which the trainer said nothing is not among them."""
    (found,) = rows(run("list", "--from", table, "--filtered").output)
    assert found[0] == "5/0/3"
    assert found[4:] == ["false", "overlong", "-0.125", "3.0", "0.375", "2"]


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        (["--lag", ">3"], ["5/1/0", "5/1/1"]),
        (["--lag", "3"], ["5/0/3", "5/1/2"]),
        (["--mismatch", ">0.5", "--lag", "0-9"], ["5/1/1"]),
        (["--filtered", "--mismatch", ">0.5"], []),
        (["--sort", "-mismatch", "--limit", "2"], ["5/1/1", "5/1/0"]),
        (["--where", "advantage >= 0 AND trained"], ["5/1/0", "5/1/1"]),
    ],
)
def test_numbers_choose_trajectories(table: Path, arguments: list[str], paths: list[str]) -> None:
    """Conditions hold together; without the trainer's lag, step and version of the weights make it."""
    assert listed(table, *arguments) == paths


def test_list_that_asks_nothing_of_training_has_its_usual_columns(table: Path) -> None:
    """The join costs only who asks for it."""
    assert "mismatch" not in run("list", "--from", table).output
    assert "tool_errors" in run("list", "--from", table).output


def test_file_has_every_column_of_training(table: Path) -> None:
    """JSON has what the printed table leaves out."""
    (found,) = json.loads(run("list", "--from", table, "--filtered", "--format", "json").output)
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
    nobody = "no rows; no score says what training made of a trajectory"
    assert nobody in run("list", "--from", tmp_path / "table", "--filtered").output
    assert "no rows\n" in run("list", "--from", table, "--filtered", "--reward", ">2").output


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
