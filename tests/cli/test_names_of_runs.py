"""Every command means the same run by a name, and by no name; what a hint prints opens what it means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_rollout.cli import app
from tests.table.tables import START_NS, root, written

SECOND = 1_000_000_000


def run(*arguments: object) -> str:
    ran = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert ran.exit_code == 0, ran.output
    return " ".join(ran.output.split())


@pytest.mark.parametrize(
    "command",
    ["report", "health", "timeline", "show", "show 1/7/0", "show 1/", "group 1/7", "compare 1/7/0 1/7/1"]
    + [f"{command} --run latest" for command in ("list", "groups", "steps", "show", "group 1/7")],
)
def test_a_run_that_goes_on_is_not_the_newest(tmp_path: Path, command: str) -> None:
    """The newest run is the one that began last, for every command."""
    path = tmp_path / "table"
    lines = []
    for second, name, step in ((1, "old", 1), (2, "young", 1), (3, "old", 1), (4, "old", 2)):
        for n in (0, 1):
            of = {"run_id": name, "experiment": name, "start_ns": START_NS + second * SECOND + n}
            lines.append(root(f"{second}{n}", step=step, rollout_n=2 * (second == 3) + n, **of))
    written(path, lines)
    printed = run(*command.split(), "--from", path)
    shown = printed.replace("others: --run old", "")
    assert "young" in shown or "1/7/0" in shown
    assert "old" not in shown


def test_an_id_is_preferred_to_an_experiment(tmp_path: Path) -> None:
    """A run may have the id that is the experiment of a later one; each is selected by its own id."""
    path = tmp_path / "table"
    first = root("1", run_id="grpo", experiment=None)
    written(path, [first, root("2", run_id="second", experiment="grpo", start_ns=START_NS * 2)])
    for name in ("grpo", "second"):
        chosen = ("--from", path, "--run", name)
        assert [row["run_id"] for row in json.loads(run("list", *chosen, "--format", "json"))] == [name]
        assert f"open the first: otel-rollout show 1/7/0 --run {name} " in run("list", *chosen)
        assert f"run {name} " in run("show", "1/7/0", *chosen)
    assert "others: --run grpo" in run("timeline", "--from", path)


def test_a_path_that_is_repeated_is_named_by_its_trace_id(tmp_path: Path) -> None:
    """A step that is trained again has trajectories of the same paths; a path that is unique is printed."""
    path = tmp_path / "table"
    seconds = {"1": 3, "2": 1, "3": 2}
    written(path, [root(n, rollout_n=n == "3", duration_ns=s * SECOND) for n, s in seconds.items()])
    trace = "1".rjust(32, "0")
    for options in ([], ["--columns", "seconds"]):
        printed = run("list", "--sort=-seconds", "--from", path, *options)
        assert f"open the first: otel-rollout show {trace} --from {path}" in printed
    assert "took 3.00 s" in run("show", trace, "--from", path)
    assert "otel-rollout show 1/7/1 " in run("list", "--seconds", "2", "--from", path)
    report = json.loads(run("report", "--from", path, "--json"))
    assert report["training"][0]["seconds"]["slowest"] == trace
