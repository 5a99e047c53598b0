"""`otel-rollout health` answers on the terminal, as JSON and as a page, and by its exit status."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from otel_rollout.cli import app
from otel_rollout.look.analysis.health.checks import BUILT_IN
from tests.analysis.generated_run import Shape, written
from tests.analysis.health.test_systems import RISING, rising
from tests.table.tables import root, row, score
from tests.table.tables import written as small

_HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"


def run(*arguments: object, code: int = 0) -> Result:
    ran = CliRunner().invoke(app, ["health", *map(str, arguments)], env={"COLUMNS": "200"})
    assert ran.exit_code == code, ran.output
    return ran


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of a run whose tool `search` fails from step 4 on."""
    path = tmp_path_factory.mktemp("tables") / "table"
    written(path, Shape(640, steps=8, faults=("tool_error_burst",)))
    return path


def test_unhealthy_run_ends_with_status_1_and_names_what_show_takes(broken: Path) -> None:
    """The JSON has the documented form, and `show` takes every trajectory that it names."""
    checks = json.loads(run("--from", broken, "--json", code=1).stdout)["checks"]
    assert [check["name"] for check in checks] == [check.name for check in BUILT_IN]
    assert {tuple(check) for check in checks} == {("name", "status", "steps", "evidence", "message")}
    found = {check["name"]: check for check in checks if check["status"] == "unhealthy"}
    assert set(found) == {"tool_error_burst"}
    burst = found["tool_error_burst"]
    assert burst["steps"] == [4, 5, 6, 7, 8]
    for reference in burst["evidence"]:
        shown = CliRunner().invoke(app, ["show", reference, "--from", str(broken)], env={"COLUMNS": "200"})
        assert shown.exit_code == 0
        assert "ConnectionError" in shown.output


def test_terminal_shows_what_is_wrong_with_the_command_to_look_closer(broken: Path) -> None:
    """Healthy checks are counted; with --all they are shown, before what is unhealthy."""
    lines = run("--from", broken, code=1).output.splitlines()
    assert not any(line.startswith("✓") for line in lines)
    (place,) = (index for index, line in enumerate(lines) if line.startswith("✗"))
    assert "tool_error_burst" in lines[place]
    assert "search" in lines[place + 1]
    assert lines[place + 2].startswith("   otel-rollout show ")
    assert lines[-3].endswith("640 trajectories, 1 unhealthy, 21 healthy")
    assert lines[-2:] == ["21 other checks: --all", f"from {broken}"]
    all_ = run("--from", broken, "--all", code=1).output
    assert all_.count("✓") == 21
    assert all_.rindex("✓") < all_.index("✗")
    assert "--all" not in all_


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_messages_are_wrapped_at_words(broken: Path, columns: int) -> None:
    """What a check says has lines of the terminal's width; a command is whole, so that it can be pasted."""
    ran = CliRunner().invoke(app, ["health", "--from", str(broken)], env={"COLUMNS": str(columns)})
    lines = ran.output.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("✗"))
    last = next(index for index, line in enumerate(lines) if line.startswith("   otel-rollout show "))
    assert max(map(len, lines[first:last])) <= columns
    assert "Tool `search` failed with" in " ".join(" ".join(lines[first:last]).split())


def test_what_could_be_observed_is_named_with_the_way(tmp_path: Path) -> None:
    """Checks that need the same are one line; those that need nothing of the user are only counted."""
    small(tmp_path / "table", [root("1"), score("1", "b", 1.0)])
    printed = re.sub(" +\n", "\n", run("--from", tmp_path / "table").output)
    assert "   policy_lag\n   → rollout_trace_attr(…, policy_version_min=…" in printed
    assert "sampler_mismatch, training_lag, training_left_out" in printed
    assert printed.count("of the trajectories: docs/training.md") == 1
    named = printed.partition("not observed yet:\n")[2].partition("\n\n")[0]
    assert all(line.startswith("   ") for line in named.splitlines())  # also where a line breaks
    assert "scores_unresolved" not in printed
    ((unobserved,), (others,)) = (
        re.findall(pattern, printed)
        for pattern in (r", (\d+) unobserved, ", r" other checks \((\d+) unobserved\): --all")
    )
    assert int(unobserved) == int(others) + sum(
        f" {check.name}" in re.sub(r"\W", " ", named) for check in BUILT_IN
    )


def test_check_with_too_few_trajectories_says_so_instead_of_how_to_record_them(tmp_path: Path) -> None:
    """The rewards are there: nobody need record one."""
    small(tmp_path, [root("1"), score("1", "b", 1.0)])
    printed = run("--from", tmp_path, "--only", "reward_constant,reward_missing").output
    assert "reward_constant\n   → Only 1 reward: with fewer than 8 nobody knows." in re.sub(
        " +\n", "\n", printed
    )
    assert "score(" not in printed


def test_rise_too_small_for_a_verdict_is_shown_with_its_trajectories(tmp_path: Path) -> None:
    """It is no failure, and `--step` before the rise finds the tool healthy."""
    small(tmp_path, rising(RISING))
    chosen = ("--from", tmp_path, "--only", "tool_error_burst")
    lines = run(*chosen).output.splitlines()
    assert lines[0].startswith("?  tool_error_burst")
    assert "search` failed in 19 of the 35" in lines[1]
    assert any("otel-rollout show 4/" in line for line in lines)
    assert "1 healthy" in run(*chosen, "--step", "1-3").output


def test_only_and_skip_choose_checks_and_step_their_range(broken: Path) -> None:
    """A run is healthy before its fault, and without the check that finds it."""
    names = "reward_missing, tool_error_burst"
    checks = json.loads(run("--from", broken, "--only", names, "--step", "1-3", "--json").stdout)["checks"]
    assert [(check["name"], check["status"]) for check in checks] == [
        ("reward_missing", "healthy"),
        ("tool_error_burst", "healthy"),
    ]
    run("--from", broken, "--skip", "tool_error_burst")


def test_chosen_steps_are_compared_with_those_before(broken: Path) -> None:
    """A fault that began earlier is found, and the finding names the chosen steps alone."""
    ran = run("--from", broken, "--only", "tool_error_burst", "--step", "6-8", "--json", code=1)
    (check,) = json.loads(ran.stdout)["checks"]
    assert check["steps"] == [6, 7, 8]
    assert {reference.split("/")[0] for reference in check["evidence"]} == {"6", "7", "8"}
    assert "Earlier, it was 0%." in check["message"]


def test_page_stands_alone_and_names_steps_and_trajectories(broken: Path, tmp_path: Path) -> None:
    """What is unhealthy comes first, and nothing is linked."""
    page = tmp_path / "health.html"
    assert "Written to" in run("--from", broken, "--html", page, code=1).output
    text = page.read_text()
    assert text.index("tool_error_burst") < text.index("reward_missing")
    assert "1 unhealthy, 21 healthy" in text
    assert "<script" not in text
    assert "href" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "reward_mising"], "There is no check 'reward_mising'. Did you mean 'reward_missing'?"),
        (["--step", "9-1"], "ends before it begins"),
        (["--step", "99"], "has no trajectory in these steps. It has steps 1–"),
        (["--run", "nothing"], "There is no run 'nothing'."),
        (["--json", "--html", "x.html"], "exclude each other"),
        (["--only", ","], "names no check"),
    ],
)
def test_bad_input_is_one_line_and_status_2(broken: Path, arguments: list[str], said: str) -> None:
    """There is no stack trace."""
    ran = run("--from", broken, *arguments, code=2)
    assert said in ran.output
    assert "Traceback" not in ran.output


def test_missing_table_is_status_2(tmp_path: Path) -> None:
    """The line says what to do."""
    assert "Traceback" not in run("--from", tmp_path / "nothing", code=2).output


def test_table_of_hostile_names_harms_nothing(tmp_path: Path) -> None:
    """Names of samples, tools, errors and runs are shown, and never interpreted."""
    rows = []
    for number in range(40):
        short = f"{number + 1:x}"
        identity = {"sample_index": _HOSTILE, "rollout_n": number, "step": None, "run_id": _HOSTILE}
        nobody = {**identity, "experiment": None, "project": None}
        error = {"status": "error", "error_type": _HOSTILE, "tool_name": _HOSTILE}
        rows += [
            root(short, **nobody),
            row(short, f"b{number}", "a" + short, kind="TOOL", **error, **nobody),
            score(short, f"c{number}", number / 7, **nobody),
        ]
    small(tmp_path / "table", rows)
    page = run("--from", tmp_path / "table", "--html", "-", code=1).output
    printed = run("--from", tmp_path / "table", code=1).output
    for text in (page, printed):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_one_trajectory_is_not_unhealthy(tmp_path: Path) -> None:
    """A single one says little, and most of it is unobserved."""
    small(tmp_path / "table", [root("1"), score("1", "b", 1.0)])
    checks = json.loads(run("--from", tmp_path / "table", "--json").stdout)["checks"]
    assert {check["status"] for check in checks} == {"healthy", "unobserved"}


def test_trajectories_of_an_older_run_are_named_by_path_beside_the_run(tmp_path: Path) -> None:
    """`show` finds them with the run, although a newer one has the same names."""
    rows = [
        root(
            f"{run_number}{number}",
            run_id=f"run-{run_number}",
            rollout_n=number,
            start_ns=10**18 + run_number,
        )
        for run_number in (1, 2)
        for number in range(8)
    ]
    rewards = [
        score(f"1{number}", f"b{number}", 0.5, run_id="run-1", rollout_n=number) for number in range(8)
    ]
    small(tmp_path / "table", [*rows, *rewards])
    ran = run("--from", tmp_path / "table", "--run", "run-1", "--only", "reward_constant", "--json", code=1)
    document = json.loads(ran.stdout)
    assert [document[name] for name in ("run_id", "project", "experiment")] == ["run-1", "project", "first"]
    assert document["checks"][0]["evidence"] == ["1/7/0"]


def test_trajectories_of_a_run_are_named_by_their_paths_beside_another_run(tmp_path: Path) -> None:
    """Another run has the same names; the printed command names the run that a person chose."""
    rows = []
    for run_id, start_ns in (("e1", 10**18 + 2), ("e2", 10**18 + 1)):
        named = {"run_id": run_id, "experiment": None, "step": 1, "start_ns": start_ns}
        for number in range(10, 34):
            rows.append(root(f"{number}{run_id}", **named, sample_index=str(number)))
            if number > 13:
                rows.append(
                    score(f"{number}{run_id}", f"b{number}{run_id}", 1.0, **named, sample_index=str(number))
                )
    small(tmp_path / "table", rows)
    told = run("--from", tmp_path / "table", "--run", "e1", "--only", "reward_missing", code=1).output
    assert f"otel-rollout show 1/10/0 --run e1 --from {tmp_path}" in told
