"""docs/training.md shows what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_rollout.base import training_scores
from otel_rollout.cli import app
from otel_rollout.table import figures
from tests.analysis.generated_run import main

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
GENERATED = re.search(r"python -m tests\.analysis\.generated_run (?P<words>.*?)\n```", PAGE, re.S)
BROKEN = PAGE.partition("### Turns that the next prompt does not repeat")[2]
EXAMPLES = re.findall(r"```\n\$ otel-rollout (.*?)\n(.*?)\n```", PAGE, re.S)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory in which the page's first command has written its table."""
    place = tmp_path_factory.mktemp("page")
    assert GENERATED
    arguments = shlex.split(GENERATED["words"].replace("\\\n", " "))
    main([str(place / arguments[0]), *arguments[1:]])
    return place


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the table that the first command about broken prefixes has written."""
    (words,) = re.findall(r"^python -m tests\.analysis\.generated_run (.*)$", BROKEN, re.M)
    name, *options = shlex.split(words)
    place = tmp_path_factory.mktemp("broken") / name
    main([str(place), *options])
    return place


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command.split()[0] for command, _ in EXAMPLES])
def test_output_is_the_pages(
    command: str, shown: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page may leave out lines, and changes none."""
    monkeypatch.chdir(directory)
    ran = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "100"})
    printed = [line.rstrip() for line in ran.output.replace("┃ path", "│ path").splitlines()]
    assert [line for line in shown.splitlines() if line not in printed] == []


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("list", "│ retokenized │"),
        ("show", "! tokens 40–41 of the previous context were re-encoded; now 1 token"),
        ("query", "│ retokenized │"),
        ("health", "✗  answers_retokenized"),
    ],
)
def test_commands_of_broken_prefixes_find_some(command: str, printed: str, broken: Path) -> None:
    """The page makes the recording that they ask."""
    (words,) = re.findall(rf"^otel-rollout ({command} .*?)(?: +# .*)?$", BROKEN, re.M)
    ran = CliRunner().invoke(
        app, shlex.split(words), env={"OTEL_ROLLOUT_DELTA_URI": str(broken), "COLUMNS": "140"}
    )
    assert printed in ran.output


def test_page_names_every_column_and_score() -> None:
    """A new one needs its meaning."""
    names = {
        value for name, value in vars(training_scores).items() if name.isupper() and isinstance(value, str)
    }
    said = set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.S)))
    unsaid = {name for name in names if name not in said and name.replace("logprob_diff_", "…_") not in said}
    assert unsaid == set()
    assert set(figures.COLUMNS["training"]) <= said | {"trained_reward", "kl_penalty"}
