"""``--step`` takes the same in every command: numbers, ranges, comparisons, the text of a step, and none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_rollout.cli import app
from tests.analysis.report.runs_for_reports import trajectory
from tests.table.tables import root, row, score, written

STEPS = {
    "1": ["1"],
    "1-2,warm-up": ["1", "2", "warm-up"],
    ">1": ["2"],
    "warm-up": ["warm-up"],
    "0.5": ["0.5"],
    "05": ["05"],
    "100000000000000000000": ["100000000000000000000"],
    "-": ["-"],
}
"""What a person types → the names of the steps that are meant."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of a trajectory in each of two steps that are numbers, four that are text, and none."""
    path = tmp_path_factory.mktemp("tables") / "table"
    numbered = (trajectory(number, step=number) for number in (1, 2))
    texts = ("warm-up", "0.5", "05", str(10**20), None)
    others = (trajectory(7 + place, step=None, step_text=text) for place, text in enumerate(texts))
    written(path, (row for rows in (*numbered, *others) for row in rows))
    return path


def run(*arguments: object, code: int = 0) -> str:
    ran = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert ran.exit_code == code, ran.output
    return ran.output


@pytest.mark.parametrize(("typed", "names"), STEPS.items())
def test_listings_take_a_step(table: Path, typed: str, names: list[str]) -> None:
    """`list`, `groups` and `steps` have the rows of the same steps."""
    chosen = ("--from", table, "--step", typed, "--format", "json")
    for command in ("list", "groups"):
        assert sorted(row["path"].partition("/")[0] for row in json.loads(run(command, *chosen))) == sorted(
            names
        )
    rows = json.loads(run("steps", *chosen))
    assert sorted(str(row["step"] or row["step_text"] or "-") for row in rows) == sorted(names)


@pytest.mark.parametrize(("typed", "names"), STEPS.items())
def test_report_takes_a_step(table: Path, typed: str, names: list[str]) -> None:
    """`report` has a row per step, by its name."""
    report = json.loads(run("report", "--from", table, "--step", typed, "--json"))
    assert sorted(str(step["step"] or "-") for step in report["training"]) == sorted(names)
    assert all(step["trajectories"] == 1 for step in report["training"])


@pytest.mark.parametrize(("typed", "names"), STEPS.items())
def test_health_takes_a_step(table: Path, typed: str, names: list[str]) -> None:
    """`health` checks the trajectories of these steps."""
    number = "1 trajectory" if len(names) == 1 else f"{len(names)} trajectories"
    assert f"first · run-1: {number}, " in run("health", "--from", table, "--step", typed)


def test_unknown_step_is_answered_with_those_that_there_are(table: Path) -> None:
    """Each command says it in its words, and ends at once."""
    known = "steps 1–2, 0.5, 05, 100000000000000000000, warm-up and those without a number"
    for command in ("list", "groups", "steps"):
        assert known in run(command, "--from", table, "--step", "cool-down")
    for command in ("report", "health", "timeline"):
        assert known in run(command, "--from", table, "--step", "cool-down", code=2)


@pytest.mark.parametrize("typed", ["7", "07", " 7", "7.0"])
def test_the_text_of_a_step_is_no_number(tmp_path: Path, typed: str) -> None:
    """`07` is another step than `7`, as it is for `show`."""
    path = tmp_path / "table"
    texts = ("07", " 7", "7.0")
    written(
        path, [root("1", step=7), *(root(f"{n}", step=None, step_text=t) for n, t in enumerate(texts, 2))]
    )
    for command in ("list", "groups"):
        listed = json.loads(run(command, "--from", path, "--step", typed, "--format", "json"))
        assert [row["path"].partition("/")[0] for row in listed] == [typed]


def test_a_dataset_row_of_the_text_that_stands_for_none_is_a_group_of_its_own(tmp_path: Path) -> None:
    """Both groups have the path 1/-; their rewards stay apart, and so do their running trajectories."""
    path = tmp_path / "table"
    rows = (("1", "-", 0.0), ("2", None, 1.0), ("3", None, 1.0))
    of_rows = [(n, value, {"sample_index": of, "rollout_n": int(n)}) for n, of, value in rows]
    named = [(root(n, **of), score(n, "d" + n, value, **of)) for n, value, of in of_rows]
    running = row("4", "b", "a4", kind="LLM", sample_index=None)
    written(path, [line for lines in named for line in lines] + [running])
    listed = json.loads(run("groups", "--from", path, "--format", "json"))
    figures = [
        (each["path"], each["sample_index"], each["trajectories"], each["reward_mean"]) for each in listed
    ]
    assert figures == [("1/-", "-", 1, 0.0), ("1/-", None, 3, 1.0)]
    for command in ("groups", "steps"):
        assert " running " in run(command, "--from", path)
