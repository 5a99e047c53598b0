"""A command that another command prints can be pasted: it opens the same run of the same place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from otel_rollout.cli import app
from tests.analysis.report.runs_for_reports import SECOND, failing_tool
from tests.table.tables import score, written

PRINTED = re.compile(
    r"^.*?otel-rollout (?P<words>(?:show|group|compare|report) .*?)(?P<others>   # .*)?$", re.M
)
"""A line with a command, and its comment."""


def run(*arguments: object, code: int = 0) -> str:
    ran = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "100"})
    assert ran.exit_code == code, ran.output
    return ran.output


def printed_by(*arguments: object, code: int = 0) -> list[str]:
    """Return the commands that a command prints."""
    output = run(*arguments, code=code)
    found = [match["words"] for match in PRINTED.finditer(output)]
    assert found, output
    return found


def rows_of(later_s: int, first_bad: int = 6, **name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a run that began some seconds later; each of them has the same paths and faults."""
    trained = {"score_name": "trained_reward", "step": 1, "sample_index": "504", "rollout_n": 0}
    rewarded = (row for row in failing_tool(first_bad=first_bad) if row.get("score_value") != 0.0)
    for row in [*rewarded, score(f"{1008:x}", "e1", 7.0, **trained)]:
        start_ns = row["start_ns"] + later_s * SECOND
        trace_id = f"{later_s % 16:x}{row['trace_id'][1:]}"
        yield {**row, **name, "trace_id": trace_id, "start_ns": start_ns, "start_time": start_ns // 1000}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table with two runs."""
    path = tmp_path_factory.mktemp("a place") / "table"
    written(path, rows_of(1, run_id="run-1"), rows_of(1_000_002, run_id="run-2"))
    return path


COMMANDS = {
    "list": (0, ["list", "--sort", "path"]),
    "groups": (0, ["groups"]),
    "report": (0, ["report", "--run", "run-1"]),
    "compare": (0, ["report", "--run", "run-1", "--compare", "1-5..6-8"]),
    "compare-newest": (0, ["report", "--compare", "1-5..6-8"]),
    "health": (1, ["health", "--run", "run-1", "--only", "reward_missing"]),
}


@pytest.fixture(scope="module")
def same_id(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table with two experiments whose runs have the same id."""
    path = tmp_path_factory.mktemp("place") / "table"
    named = {"run_id": "run-1"}
    written(
        path,
        rows_of(1, experiment="grpo-41", **named),
        rows_of(1_000_002, first_bad=99, experiment="grpo-7", **named),
    )
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--run", "grpo-41"],
        ["groups", "--run", "grpo-41"],
        ["report", "--compare", "grpo-41"],
        ["report", "--run", "grpo-41", "--compare", "1-5..6-8"],
    ],
    ids=" ".join,
)
def test_a_run_is_named_by_what_no_other_run_has(arguments: list[str], same_id: Path) -> None:
    """Two experiments may have the same run id, which names the newer one."""
    commands = printed_by(*arguments, "--from", same_id)
    assert any(" --run grpo-41 " in words for words in commands)
    for words in commands:
        chosen = "grpo-41" if "--run" in words else "grpo-7"
        assert f"experiment {chosen}" in " ".join(run(*shlex.split(words)).split())


def test_other_runs_are_listed_by_what_names_them_alone(same_id: Path) -> None:
    """``--run`` takes each name of the list."""
    assert run("report", "--from", same_id).endswith(" · one of 2 runs; others: --run grpo-41\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_printed_command_names_run_and_place(name: str, table: Path) -> None:
    """Without either, it would find nothing, or open another run."""
    code, arguments = COMMANDS[name]
    chosen = "run-2" if name == "compare-newest" else "run-1"
    if name in ("list", "groups"):
        arguments = [*arguments, "--run", chosen]
    for words in printed_by(*arguments, "--from", table, code=code):
        assert f"--from '{table}'" in words
        assert f"run {chosen}" in " ".join(run(*shlex.split(words)).split())


def test_trajectories_of_an_older_run_have_paths_if_it_can_be_named(table: Path) -> None:
    """A third run has the same paths in part; the printed name of the run tells them apart."""
    written(table.parent / "three", rows_of(1, run_id="run-1"), rows_of(1_000_002, run_id="run-2"),
            (row for row in rows_of(2_000_003, run_id="run-3") if row["step"] < 7))  # fmt: skip
    for place in (table, table.parent / "three"):
        told = run("health", "--from", place, "--run", "run-1", "--only", "reward_missing", code=1)
        (line,) = (each for each in told.splitlines() if "otel-rollout show" in each)
        assert len(re.findall(r"\b\d/\d+/\d\b", line)) > 1
        assert not re.search(r"\b[0-9a-f]{32}\b", line)
