"""`otel-rollout report` shows a run's figures and what changed, as text, JSON and a page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner, Result

from otel_rollout.cli import app
from otel_rollout.cli.report import sparkline
from tests.analysis.report.runs_for_reports import failing_tool, trajectory
from tests.table.tables import written


def run(*arguments: object, code: int = 0) -> Result:
    ran = CliRunner().invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "100"})
    assert ran.exit_code == code, ran.output
    return ran


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "table"
    older = failing_tool("run-1", steps=8, first_bad=99)
    written(
        path,
        older,
        [*failing_tool("run-2"), *trajectory(3000, reward=1.0, step=8, run_id="run-2", validate=True)],
    )
    return path


def test_terminal_has_curves_steps_and_tools(table: Path) -> None:
    """The newest run has sparklines, a row per step with every figure, and its tools with their errors."""
    printed = run("--from", table).output
    assert re.search(r"tool errors +▁▁▁▁▁███ +0% → 50%", printed)
    assert re.search(r"^ +5 +8 +0.5\d+ ± \S+ +0.5\d* .* 0%", printed, re.MULTILINE)
    assert re.search(r"^ +8 .* 50%", printed, re.MULTILINE)
    assert re.search(
        r"^ +8 +10.00 s +10.00 s +10.00 s +4.00 s +2.00 s +1.00 s +3.00 s +8/1032/0", printed, re.MULTILINE
    )
    assert re.search(r"browser +64 +12 \(19%\) +6 .* 0/8 +4/8 +4/8 +4/8 +TimeoutError", printed)
    assert re.search(r"^ validation/8 +1 +1 ", printed, re.MULTILINE)
    assert f"from {table}" in printed


@pytest.mark.parametrize("width", range(60, 201, 20))
def test_table_of_tools_fits_the_terminal(tmp_path: Path, width: int) -> None:
    """An error has the name of its class, never cut; steps are left out before it."""
    classes = ["aiohttp.client_exceptions.ClientConnectorError", "browser_env.TimeoutError", "TimeoutError"]
    rows = list(failing_tool(first_bad=1))
    for place, failed in enumerate(row for row in rows if row.get("error_type")):
        failed["error_type"] = classes[place % len(classes)]
    written(tmp_path / "table", rows)
    ran = CliRunner().invoke(app, ["report", "--from", str(tmp_path / "table")], env={"COLUMNS": str(width)})
    tools = ran.output.partition("\ntools\n")[2].partition("\nfrom ")[0]
    assert all(cell_len(line) <= width for line in tools.splitlines()), tools
    assert "…" not in tools
    if width == 60:
        assert "by type" in tools.partition("no room for ")[2]
    else:
        assert "by type" in tools.partition("──")[0]
        assert "TimeoutError 21 " in tools
        assert "ClientConnectorError 11 " in tools


def test_narrow_table_of_tools_has_the_steps_around_the_first_bad_one(tmp_path: Path) -> None:
    """The last step alone would not show the change; the last steps take the room that is left."""
    written(tmp_path / "table", failing_tool(steps=20, first_bad=9))
    tools = {}
    for width in (70, 80, 100):
        arguments = ["report", "--from", str(tmp_path / "table")]
        ran = CliRunner().invoke(app, arguments, env={"COLUMNS": str(width)})
        heading = ran.output.partition("\ntools\n")[2].partition("──")[0]
        tools[width] = [int(step) for step in re.findall(r"\b\d+\b", heading)]
    assert tools == {70: [8, 9], 80: [8, 9, 20], 100: [8, 9, 17, 18, 19, 20]}


def test_title_of_a_table_stands_apart_from_the_note_before_it(tmp_path: Path) -> None:
    """A note that names columns without room belongs to the table above it, and a blank line ends it."""
    written(tmp_path / "table", failing_tool(first_bad=1))
    arguments = ["report", "--from", str(tmp_path / "table")]
    printed = CliRunner().invoke(app, arguments, env={"COLUMNS": "60"}).output
    lines = [line.rstrip() for line in printed.splitlines()]
    titles = [place for place, text in enumerate(lines) if text in ("time of a trajectory", "tools")]
    assert "no room for" in printed.partition("time of a trajectory")[0]
    assert [lines[place - 1] for place in titles] == ["", ""]


def test_recorded_zero_is_shown(tmp_path: Path) -> None:
    """A reward and a lag of zero are figures; failures and tool calls that never happen are left out."""
    versions = {"policy_version_min": 1, "policy_version_max": 1}
    written(tmp_path / "table", [*trajectory(1, reward=0.0, **versions), *trajectory(3, reward=0.0, step=2)])
    printed = run("--from", tmp_path / "table").output
    assert re.search(r"reward +▅▅ +0 → 0", printed)
    assert re.search(r"policy lag +\S+ +0 → 0", printed)
    assert re.search(r"step +trajectories +reward .*cut replies +policy lag", printed)
    assert re.search(r"^ +1 +1 +0 .* 0% +0", printed, re.MULTILINE)
    assert "failed" not in printed
    assert "tool calls" not in printed
    run("--from", tmp_path / "table", "--html", tmp_path / "page.html")
    assert "Policy lag, in steps" in (tmp_path / "page.html").read_text()


def test_a_mean_says_of_how_many_trajectories_it_is(tmp_path: Path) -> None:
    """A trajectory that runs counts on both sides, with a reward and without one."""
    running = list(trajectory(2, reward=0.0))[1:]  # its root has not ended
    rows = [*trajectory(0, reward=1.0), *trajectory(1), *running]
    written(tmp_path / "table", rows)
    assert re.search(r"3 \(1 running\) +0\.5 ± 0\.707 \(2 of 3\)", run("--from", tmp_path / "table").output)


def test_curves_are_of_steps_with_a_number(tmp_path: Path) -> None:
    """A step that is text has its row, and no place on a curve, as on the page."""
    rows = [each for step in (1, 2) for each in trajectory(step, reward=float(step), step=step)]
    rows += trajectory(3, reward=9.0, step=None, step_text="warm-up")
    written(tmp_path / "table", rows)
    printed = run("--from", tmp_path / "table").output
    assert re.search(r"reward +▁█ +1 → 2", printed)
    assert re.search(r"^ +warm-up +1 +9 ", printed, re.MULTILINE)


def test_steps_and_run_are_chosen(table: Path) -> None:
    """--step and --run limit the figures; --json has them all."""
    document = json.loads(run("--from", table, "--run", "run-1", "--step", "2-3", "--json").output)
    assert [document["run_id"], [step["step"] for step in document["training"]]] == ["run-1", [2, 3]]
    assert document["training"][0]["tools"] == [
        {"name": "browser", "calls": 8, "known": 8, "errors": 0, "error_types": {}, "seconds_mean": 2.0}
    ]


def test_page_loads_nothing(table: Path, tmp_path: Path) -> None:
    """The page is one file with charts, without a script, a link or an address."""
    page = tmp_path / "run.html"
    assert run("--from", table, "--html", page).output == f"Written to {page}\n"
    html = page.read_text()
    assert html.count("<svg") == 6
    assert not re.search(r"<script|<link|href=|src=|https?:", html)
    assert run("--from", table, "--html", "-").output == html


def test_comparison_names_cause_and_trajectories(table: Path, tmp_path: Path) -> None:
    """Ranges of steps are compared in the terminal, as JSON and as a page."""
    arguments = ("--from", table, "--compare", "1-5..6-8")
    printed = run(*arguments).output
    assert "steps 1–5 → steps 6–8" in printed
    assert "tool browser: errors 0% → 50%" in printed
    assert "    all TimeoutError\n" in printed
    assert f"otel-rollout show 6/1024/0 --from {table}   # also 6/1025/0, " in printed
    listed = [
        line for line in printed.splitlines() if "the usual change" in line and not line.startswith("The ")
    ]
    assert [line.partition(" ")[0] for line in listed] == ["tool", "reward,"]
    more = run(*arguments, "--all").output
    assert "reward, spread" in more
    assert "reward, spread" not in printed
    changes = json.loads(run(*arguments, "--json").output)
    assert (changes["before"]["steps"], changes["after"]["steps"]) == ([1, 2, 3, 4, 5], [6, 7, 8])
    assert {change["name"] for change in changes["changes"]} == {
        "tool_errors:browser",
        "reward_mean",
        "reward_std",
    }
    page = tmp_path / "changes.html"
    run(*arguments, "--html", page)
    html = page.read_text()
    assert re.search(r"Look at:\s+<code>6/1024/0</code>,\s+<code>6/1025/0</code>", html)


def test_two_runs_are_compared(table: Path) -> None:
    """--compare names the earlier run, or the experiment of both, and says what changed to the newest."""
    for name in ("run-1", "first"):
        printed = run("--from", table, "--compare", name).output
        assert "run-1, steps 1–8 → first · run-2, steps 1–8" in printed
        assert "tool browser: errors 0% → 19%" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--run", "run-3"], "There is no run 'run-3'. Did you mean"),
        (["--step", "3-1"], "--step '3-1' ends before it begins"),
        (["--step", "99"], "first · run-2 has no step 99. It has steps 1–8."),
        (["--compare", "5..77"], "step 77, which first · run-2 does not have. It has steps 1–8."),
        (["--compare", "warm-up..3"], "Steps are numbers alone, such as 40..60 or 30-40..50-60."),
        (["--compare", "1-3"], "Steps are numbers alone, such as 40..60 or 30-40..50-60."),
        (["--compare", "3..3"], "--compare 3..3 names the same steps twice: name two that differ."),
        (["--compare", "run-2"], "--compare 'run-2' is the run itself"),
        (["--compare", "1..2", "--step", "1"], "--step and --compare exclude each other"),
        (["--compare", "1..8", "--validation"], "--compare names step 1, which first · run-2 does not have."),
        (["--html", "/nowhere/page.html"], "The page cannot be written"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line(table: Path, arguments: list[str], said: str) -> None:
    """Wrong input ends with status 2 and one line that says what to do."""
    printed = run("--from", table, *arguments, code=2).output
    assert said in printed
    assert printed.count("\n") == 1


def test_empty_spool_is_one_line(tmp_path: Path) -> None:
    """A spool without a trajectory has no report."""
    assert run("--from", tmp_path, code=2).output.count("\n") == 1


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([None], " "),
        ([1], "▅"),
        ([0, None, 1], "▁ █"),
        ([1e308, -1e308], "  "),
        ([0.0] * 96, "▅" * 48),
    ],
)
def test_sparkline_is_a_character_per_step(values: list[float | None], line: str) -> None:
    """Missing and huge values are spaces; many steps share characters."""
    assert sparkline(values) == line
