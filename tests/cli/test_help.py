"""The help of every command ends with examples, which parse and fit into a terminal."""

from __future__ import annotations

import inspect
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from otel_rollout.cli import app
from otel_rollout.cli.commands import EXAMPLES, epilog

TERMINAL = 80
PADDED = TERMINAL - 2
"""Columns of a line of text in a help of 80 columns."""
ROOT = typer.main.get_command(app)


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a command and those below it, each with what is typed after ``otel-rollout``."""
    yield path, command
    for name in getattr(command, "commands", ()):
        yield from commands(command.get_command(None, name), f"{path} {name}".strip())


COMMANDS = dict(commands(ROOT))


def parsed(words: list[str]) -> str:
    """Parse arguments without running their command; return the command's path."""
    path = ""
    while hasattr(COMMANDS[path], "commands"):
        word, *words = words
        path = f"{path} {word}".strip()
    with COMMANDS[path].make_context(path, words):
        return path


def test_every_command_has_examples() -> None:
    """No command is without, and no example is of a command that is gone."""
    assert set(EXAMPLES) == set(COMMANDS)
    assert all(1 <= len(examples) <= 4 for examples in EXAMPLES.values())


def test_commands_are_in_three_groups() -> None:
    """Who looks at a run, delivers spans or maintains a machine finds the commands together."""
    printed = CliRunner().invoke(app, ["--help"], env={"COLUMNS": str(TERMINAL)}).output
    looking, delivering, maintaining = (
        printed.index(heading) for heading in ("Look at runs", "Deliver spans", "Maintain")
    )
    assert looking < printed.index(" view ") < printed.index(" query ") < delivering
    assert delivering < printed.index(" forward ") < maintaining < printed.index(" doctor ")


@pytest.mark.parametrize("path", EXAMPLES)
def test_help_shows_each_example_on_one_line_of_a_terminal(path: str) -> None:
    """The help of 80 columns has every example as it is written, and cuts no name."""
    ran = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": str(TERMINAL)})
    assert ran.exit_code == 0
    printed = [line.rstrip() for line in ran.output.splitlines()]
    for line in epilog(path).splitlines():
        assert f" {line}".rstrip() in printed
    assert max(map(len, printed)) <= TERMINAL
    names = [option for parameter in COMMANDS[path].params for option in getattr(parameter, "opts", ())]
    assert [name for name in names if name.startswith("--") and f"{name} " not in ran.output] == []


def test_help_has_the_example_of_fields_as_one_word() -> None:
    """A person copies it: each command that reads a dump has it whole in 80 columns."""
    reading = [path for path, command in COMMANDS.items() if "map_" in {each.name for each in command.params}]
    assert len(reading) > 10
    for path in reading:
        ran = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": str(TERMINAL)})
        assert "reward=score,step=epoch" in ran.output, path


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_parse(path: str) -> None:
    """The command's parser takes its examples; those of several commands are of existing ones."""
    for words in (shlex.split(text) for text, _ in EXAMPLES[path]):
        assert parsed(words) == path or path in ("", "table")


@pytest.mark.parametrize("path", COMMANDS)
def test_paragraphs_of_a_help_break_where_the_terminal_does(path: str) -> None:
    """A paragraph is one line, or lines that 80 columns hold: others would break twice."""
    for paragraph in inspect.cleandoc(COMMANDS[path].help or "").split("\n\n"):
        lines = paragraph.splitlines()
        assert len(lines) == 1 or max(map(len, lines)) <= PADDED


def test_command_starts_without_what_other_commands_need() -> None:
    """`status`, which a probe calls every few seconds, loads neither views nor pages; `list` no page."""
    for command, absent in (("status", ("look.analysis", "look.sources", "table")), ("list", ("look.web",))):
        program = (
            f"import sys\nfrom otel_rollout.cli import app\n"
            f"try: app(['{command}', '--help'])\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
        )
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        loaded = ran.stderr.split()
        assert "otel_rollout.cli.main" in loaded
        names = tuple(f"otel_rollout.{room}" for room in absent)
        assert [name for name in loaded if name.startswith(names)] == []
