"""docs/look.md and docs/why.md show what commands print of the run with six causes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_rollout.cli import app
from tests.analysis.generated_run import Shape, main, rows

DOCS = Path(__file__).parents[2] / "docs"
LOOK = (DOCS / "look.md").read_text(encoding="utf-8")
WHY = (DOCS / "why.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the table that the first command of look.md has written."""
    words = re.search(r"tests\.analysis\.generated_run (.*)", LOOK)
    assert words
    name, *options = shlex.split(words[1])
    place = str(tmp_path_factory.mktemp("page") / name)
    main([place, *options])
    return place


def printed(*words: str) -> str:
    """Return what a command prints on a terminal of 200 columns."""
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"}).output


def test_table_of_causes_names_each_unhealthy_check(table: str) -> None:
    """It names no other one."""
    causes = LOOK.partition("| cause that was planted |")[2].partition("\n\n")[0]
    checks = json.loads(printed("health", "--json", "--from", table))["checks"]
    unhealthy = {check["name"] for check in checks if check["status"] == "unhealthy"}
    assert set(re.findall(r"`(\w+_\w+)`", causes)) == unhealthy


def test_tools_get_the_arguments_that_the_model_wrote() -> None:
    """Who reads a trajectory of the generated run finds the planted faults, and no other."""
    asked = ""
    for row in rows(Shape(trajectories=64, steps=2)):
        if row.get("kind") == "LLM":
            asked = json.loads(row["output"])["choices"][0]["message"]["content"]
        elif row.get("kind") == "TOOL":
            assert row["input"] in asked


def test_changes_are_printed_as_why_shows_them(table: str) -> None:
    """The page shows the first of them."""
    (shown,) = re.findall(r"```\n(steps (\S+) → steps (\S+)\n.*?)```", WHY, re.S)
    excerpt, before, after = shown
    lines = printed("report", "--from", table, "--compare", f"{before}..{after}").splitlines()
    pasted = [re.sub(r" --from \S+", "", line) for line in lines]
    assert [line for line in excerpt.splitlines() if line not in lines + pasted] == []
