"""`otel-rollout group` prints siblings as a tree, from tables, and says what is wrong in one line."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from rich.console import Console
from typer.testing import CliRunner

from otel_rollout.cli import app
from otel_rollout.cli.group import show_group
from otel_rollout.look.analysis.group.siblings import Siblings
from otel_rollout.look.analysis.group.tree import tree_of
from tests.analysis.group.groups import group, said, sibling
from tests.analysis.group.test_page import GROUPS
from tests.analysis.group.test_siblings import trajectory
from tests.table.tables import written
from tests.viewer.test_hostile import OWN, console, is_plain
from tests.viewer.test_hostile import written as printed


def shown(found: Siblings, width: int = 70) -> str:
    on = Console(file=io.StringIO(), width=width, highlight=False)
    show_group(tree_of(found), on, {})
    return printed(on)


def run(*arguments: object, code: int = 0) -> str:
    ran = CliRunner().invoke(app, ["group", *map(str, arguments)], env={"COLUMNS": "100"})
    assert ran.exit_code == code, ran.output
    return ran.output


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table with group 1/7 of two runs."""
    path = tmp_path / "table"
    rows: list[dict[str, Any]] = [
        *trajectory("1", "It is 42.", 1.0, rollout_n=0),
        *trajectory("2", "It is 41.", 0.0, rollout_n=1, status="error"),
        *trajectory("3", "It is 40.", 0.5, run_id="run-0", experiment="older", start_ns=10**18),
    ]
    written(path, rows)
    return path


def test_tree_of_a_group_is_printed(table: Path) -> None:
    """Shared turns once, branches with their rewards, and the continuations side by side."""
    output = re.sub(r" +$", "", run("1/7", "--from", table), flags=re.MULTILINE)
    tree, _, rest = output.partition("\n╭")
    assert (
        tree
        == f"""\
group 1/7
run        run-1 · project project · experiment first
siblings   2, 1 failed
reward     mean 0.5, 0.0 to 1.0
different  2 conversations
alike      the first turn
from       {table}

2 siblings · mean reward 0.5
 1 user  Why?
2 branches from turn 2 (assistant), character 8 of it
├── 1/7/0 reward 1.0
│    2 assistant  It is 42.
└── 1/7/1 reward 0.0 · failed
     2 assistant  failed  It is 41. error
"""
    )
    assert "The mean reward differs most from turn 2 on: 1.0 (1 sibling) against 0.0 (1 sibling)." in rest
    assert "They part at turn 2 (assistant), character 8 of it (“42.” and “41.”)." in rest
    assert re.search(r"1/7/0 · reward 1\.0 +1/7/1 · reward 0\.0 · failed", rest)
    assert rest.endswith(f"All turns: otel-rollout compare 1/7/0 1/7/1 --from {table}\n")


def test_run_is_chosen_by_id_or_experiment(table: Path) -> None:
    """By default the newest run that has the group counts."""
    for name in ("run-0", "older"):
        assert "It is 40." in run("1/7", "--from", table, "--run", name)
    assert "It is 42." in run("1/7/1", "--from", table, "--run", "latest")


def test_page_and_json_are_written(table: Path, tmp_path: Path) -> None:
    """The page goes to a file, JSON to standard output."""
    file = tmp_path / "group.html"
    assert str(file) in run("1/7", "--from", table, "--html", file).replace("\n", "")
    assert "<mark>42.</mark>" in file.read_text()
    assert run("1/7", "--from", table, "--html", "-") == file.read_text()
    document = json.loads(run("1/7", "--from", table, "--json"))
    assert [each["name"] for each in document["siblings"]] == ["1/7/0", "1/7/1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["7"], "'7' does not name a group: write STEP/SAMPLE"),
        (["1/"], "1/ names a step, not a group"),
        (["9/9"], "There is no group 9/9 in "),
        (["-/9"], "There is no group -/9 in "),
        (["1/7", "--run", "run-9"], "There is no run 'run-9'. Did you mean"),
        (["9/9", "--run", "run-0"], "There is no group 9/9 in older · run-0."),
        (
            ["1/7", "--html", "/nowhere/page.html"],
            "The page cannot be written: No such file or directory: /nowhere/page.html",
        ),
        (["1/7", "--from", "/nowhere"], "There is no file or directory /nowhere."),
        (["1/7", "1/8"], "1/8: one name too many"),
        (["1/7", "--jsn"], "There is no option --jsn. Did you mean --json?"),
    ],
)
def test_wrong_input_is_reported_in_one_line(table: Path, arguments: list[str], message: str) -> None:
    """The command ends with status 2 and says what to do."""
    source = [] if "--from" in arguments else ["--from", str(table)]
    output = run(*arguments, *source, code=2)
    assert message in " ".join(output.replace("│", " ").split())
    assert "Traceback" not in output


@given(GROUPS)
def test_group_of_any_text_does_not_control_the_terminal(found: Siblings) -> None:
    """The output has no control character but the colours that rich writes."""
    on = console()
    show_group(tree_of(found), on, {})
    assert is_plain(OWN.sub("", printed(on)))


def test_large_group_is_printed_in_bounded_space() -> None:
    """A deep tree, long conversations and long texts leave a readable screen."""
    text = "word " * 20_000
    chain = [sibling(n, said(*([text] * n), f"{n}"), n / 64) for n in range(64)]
    many = [sibling(64, said(*([text] * 10_000)), 0.0)]
    output = shown(group(*chain, *many), width=80)
    assert len(output.splitlines()) < 250
    assert max(map(len, output.splitlines())) <= 80
    copies = shown(group(*(sibling(n, said("so"), 1.0) for n in range(64))))
    assert "and 52 more" in copies
    assert "All siblings are identical." in copies


def test_group_without_rewards_is_printed() -> None:
    """There is no contrast then, and the reason is said."""
    output = shown(group(sibling(0, said("a")), sibling(1, [], state="running")))
    assert "No reward is a number: nothing says which branch is the good one." in output
    assert re.search(r"1/7/1 no reward · running\n +\(no turns\)", output)
