"""`otel-rollout timeline` prints, writes pages, traces and JSON, and reports bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.analysis.timeline.steps import call, process, trajectory
from tests.cli.test_table import run
from tests.table.tables import written
from tests.viewer.test_conversation import line

_RUN = "Run first · run-1"
_STEPS = "It has steps 11–12; name one of them."


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "table"
    rows = trajectory(16, 0, 3, step=11)
    for number in range(11):
        rows += trajectory(number, 100, 110, call("LLM", 101, 105), resource=process(number % 2 + 1))
    rows += trajectory(11, 100, 130, call("TOOL", 101, 130, "browser\x1b"), resource=process(1))
    written(path, rows)
    return path


def test_timeline_is_printed(table):
    """The sentence, the phases, the stragglers and the processes; control characters are visible."""
    printed = run("timeline", "--step", 12, "--from", table).output
    assert "The slowest of 12 held the step for 20.00 s: 20.00 s in tool `browser␛`." in printed
    assert "12 trajectories in 30.00 s: 4.7 at once on average, 12 at most." in printed
    rows = [[cell.strip() for cell in row.split("│")[1:-1]] for row in printed.splitlines() if "│" in row]
    assert rows == [
        ["generate", "44.00 s", "31.4%", "1.5", "13.3%"],
        ["tool", "29.00 s", "20.7%", "1.0", "96.7%"],
        ["browser␛", "29.00 s", "20.7%", "1.0", "96.7%"],
        ["waiting", "1 min 7 s", "47.9%", "2.2", "20.0%"],
        ["12/1/3", "ok", "30.00 s", "30.00 s", "pid 1"],
        ["pid 1", "7", "10.00 s", "30.00 s"],
        ["pid 2", "5", "10.00 s", "10.00 s"],
    ]
    assert f"from {table}" in printed
    assert "\x1b" not in printed


def test_slowest_step_is_the_default(table):
    """The command says that it chose the step."""
    printed = run("timeline", "--from", table).output
    assert printed.startswith("Step 12 of first · run-1\n")
    assert "This step has the longest wall time of the run." in printed


def test_json_trace_and_page_are_written(table, tmp_path):
    """JSON on standard output stays JSON beside a trace; a page goes to a file or standard output."""
    trace, page = tmp_path / "trace.json", tmp_path / "page.html"
    printed = run("timeline", "--step", 12, "--from", table, "--json", "--perfetto", trace)
    assert json.loads(printed.stdout)["stragglers"]["seconds"] == 20.0
    assert f"Written to {trace}" in printed.stderr
    assert sum(event["ph"] == "X" for event in json.loads(trace.read_bytes())["traceEvents"]) == 24
    run("timeline", "--step", 12, "--from", table, "--html", page)
    assert page.read_text() == run("timeline", "--step", 12, "--from", table, "--html", "-").stdout
    assert run("timeline", "--step", 11, "--from", table, "--perfetto", "-").stdout.startswith(
        '{"displayTimeUnit"'
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step", "7"], f"{_RUN} has no step 7 of training. {_STEPS}"),
        (["--step", "x"], f"{_RUN} has no step x of training. {_STEPS}"),
        (["--step", "11-12"], f"{_RUN} has no step 11-12 of training. {_STEPS}"),
        (["--step", "9" * 30], f"{_RUN} has no step {'9' * 30} of training. {_STEPS}"),
        (["--step", "-"], f"{_RUN} has no trajectories without a step of training. {_STEPS}"),
        (["--validation"], f"{_RUN} has no step of validation."),
        (["--run", "nobody"], "There is no run 'nobody'. Runs: first · run-1."),
        (["--html", "x", "--json"], "--html and --json are two outputs: name one of them."),
        (
            ["--perfetto", "-", "--json"],
            "--perfetto - and another output would mix in standard output: name a file.",
        ),
    ],
)
def test_wrong_options_are_one_line(table, options, message):
    """The exit status is 2."""
    assert run("timeline", "--from", table, *options, code=2).stderr == message + "\n"


@pytest.mark.parametrize(("option", "noun"), [("--html", "page"), ("--perfetto", "output")])
def test_output_that_cannot_be_written_is_one_line(table, tmp_path, option, noun):
    """It names the file."""
    missing = tmp_path / "missing" / "file"
    failed = run("timeline", "--from", table, option, missing, code=2)
    assert failed.stderr.startswith(f"The {noun} cannot be written: ")
    assert str(missing) in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_spool_has_a_timeline(tmp_path):
    """Spans in a file become a table for a moment."""
    at = {"start": 1_700_000_000_000_000_000, "end": 1_700_000_001_000_000_000}
    (tmp_path / "spans.jsonl").write_bytes(
        line(1, "a", "b", parent=0, kind="AGENT", **at) + b"\n" + line(2, "a", "b", **at)
    )
    assert "One trajectory in" in run("timeline", "--from", tmp_path / "spans.jsonl").output


def test_step_that_is_no_number_is_found_by_its_name(tmp_path):
    """A step has the name that was recorded, and the slowest may be such a step."""
    rows = trajectory(0, 0, 3, step=1) + trajectory(1, 10, 90, step=None, step_text="warm-up")
    written(tmp_path / "table", rows)
    printed = run("timeline", "--step", "warm-up", "--from", tmp_path / "table").output
    assert printed.startswith("Step warm-up of first · run-1\nOne trajectory in 1 min 20 s.")
    assert run("timeline", "--from", tmp_path / "table").output.startswith("Step warm-up of ")
    missing = run("timeline", "--step", "cool-down", "--from", tmp_path / "table", code=2).stderr
    advice = "It has steps 1, warm-up; name one of them.\n"
    assert missing == f"{_RUN} has no step cool-down of training. {advice}"
    without = run("timeline", "--step", "-", "--from", tmp_path / "table", code=2).stderr
    assert without == f"{_RUN} has no trajectories without a step of training. {advice}"
