"""The workflows of a public forge call this repository's make targets, with few rights."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import go_tools
from tests.make_targets import make, targets

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: (?:\./\S+|[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)$")
MAY_WRITE = {
    ("release.yml", "publish"): {"id-token": "write"},
    ("docs.yml", "publish"): {"pages": "write", "id-token": "write"},
}
"""A job that publishes → its rights; every other job may read the repository, and nothing else."""


def test_help_of_make_fits_a_terminal() -> None:
    """No line of the list of targets is longer than 80 characters."""
    lines = make("help").stdout.splitlines()
    assert len(lines) > 10
    assert [line for line in lines if len(line) > 80] == []


def loaded(path: Path) -> dict[str, Any]:
    """A workflow, its anchors resolved."""
    return dict(yaml.safe_load(path.read_text()))


def commands(path: Path) -> list[str]:
    """The commands of a workflow."""
    steps = [step for job in loaded(path)["jobs"].values() for step in job.get("steps", ())]
    return [step["run"] for step in steps if "run" in step]


def test_workflows_are_what_the_forge_takes() -> None:
    """actionlint finds nothing; where it is older than an action, it would say so."""
    command = [str(go_tools.get("actionlint")), "-shellcheck=", "-pyflakes=", *map(str, WORKFLOWS)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stdout + ran.stderr


def test_actionlint_notices_a_mistake(tmp_path: Path) -> None:
    """A workflow with a job that needs a missing one is refused, so the check above checks."""
    wrong = tmp_path / "ci.yml"
    wrong.write_text(
        (ROOT / ".github/workflows/ci.yml").read_text().replace("[test, parts]", "[tests, parts]")
    )
    command = [str(go_tools.get("actionlint")), str(wrong)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    assert "tests" in ran.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_to_a_commit(path: Path) -> None:
    """A tag can be moved to other code; the comment says which version the commit is."""
    lines = [line.strip().removeprefix("- ") for line in path.read_text().splitlines()]
    assert all(PINNED.fullmatch(line) for line in lines if line.startswith("uses:"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_have_no_more_rights_than_they_need(path: Path) -> None:
    """Nobody but a job that publishes may write anything, and no secret is stored."""
    workflow = loaded(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job.get("permissions") == MAY_WRITE.get((path.name, name))
        assert "uses" in job or "timeout-minutes" in job, name
    assert "secrets." not in path.read_text()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_make_targets_of_a_workflow_exist(path: Path) -> None:
    """A target that is renamed is renamed in the workflows."""
    known = targets()
    called = {
        m[1] for command in commands(path) for m in re.finditer(r"\bmake (?:--silent )?([\w-]+)", command)
    }
    assert called <= known
    include = [each for job in loaded(path)["jobs"].values() for each in _matrix(job).get("include", ())]
    assert {part for each in include for part in each["tests"].split()} <= known


def _matrix(job: dict[str, Any]) -> dict[str, Any]:
    return dict(job.get("strategy", {}).get("matrix", {}))


def test_both_tiers_are_those_of_ci_run() -> None:
    """.ci/run makes `demo`, `test` and `test-all`; the workflow makes `test` and each part of `test-all`."""
    script = (ROOT / ".ci" / "run").read_text()
    assert re.findall(r"^make (\S+)$", script, re.MULTILINE) == ["demo", "test", "test-all"]
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", "")
    (parts,) = re.findall(r"^OTHER_TESTS := (.+)$", makefile, re.MULTILINE)
    assert json.loads(make("parts").stdout) == parts.split()
    listed = tomllib.loads((ROOT / "tests" / "environments.toml").read_text())
    assert {name for name in parts.split() if name != "docs"} <= listed.keys()
    assert commands(ROOT / ".github/workflows/ci.yml").count("make test") == 1


@pytest.mark.parametrize("group", ["dev", "verl", "foreign"])
def test_upgrade_moves_the_named_packages_over_the_constraints(group: str) -> None:
    """`make upgrade` resolves anew from the group's constraints, with the named packages."""
    constraints = f"constraints/{group}.txt"
    assert (ROOT / constraints).exists()
    ran = make("--dry-run", "--assume-old=.venv/.tools", "upgrade", "UPGRADE=one==3.* two", f"GROUP={group}")
    command = " ".join(ran.stdout.replace("\\\n", " ").split())
    assert f"--group {group} --upgrade-package 'one==3.*' --upgrade-package 'two'" in command
    assert command.endswith(f"--output-file {constraints}")
