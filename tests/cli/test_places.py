"""Every command in a folder whose table, spool or database cannot be used: one line says which, and why."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import pytest

from tests.cli.test_help import COMMANDS

NOBODY: Final = 65534
RIGHTS_OF_ROOT: Final = "-dac_override,-dac_read_search"
"""What lets root read every file; without them, the permissions of files hold for root too."""
OWN_STATUS: Final = {"doctor": 1}
"""Command that answers with its findings → its exit status."""
ARGUMENTS: Final[Mapping[str, list[str]]] = {
    "demo": [],
    "show": [],
    "compare": ["1/0/0", "1/0/1"],
    "list": [],
    "groups": [],
    "group": ["1/0"],
    "steps": [],
    "query": ["SELECT 1"],
    "export": ["--format", "messages"],
    "view": ["--port", "0"],
    "report": [],
    "timeline": [],
    "health": [],
    "import": ["spans.jsonl.zst", "--to", "delta"],
    "table compact": [],
    "table prune": ["--older-than", "1d"],
    "table verify": [],
    "status": [],
    "forward": [],
    "replay": ["spans.jsonl.zst", "--to", "test-file"],
    "doctor": [],
}
ARGUMENTS_FOR_MLFLOW: Final[Mapping[str, list[str]]] = {
    "show": ["--from", "mlflow"],
    "compare": ["1/0/0", "1/0/1", "--from", "mlflow"],
    "group": ["1/0", "--from", "mlflow"],
    "import": ["mlflow", "--to", "delta"],
}
EVERY_COMMAND: Final = frozenset(ARGUMENTS)


class Place(NamedTuple):
    """Something in a folder that commands use.

    Attributes:
        users: the commands that use it.
        variables: variables that name it.
        arguments: the commands' arguments.
        modules: what many of them import.
    """

    users: frozenset[str]
    variables: Mapping[str, str] = {}
    arguments: Mapping[str, list[str]] = ARGUMENTS
    modules: tuple[str, ...] = (
        *(f"otel_rollout.cli.{name}" for name in ("export", "group", "health", "report", "timeline", "view")),
        "deltalake",
    )


PLACES: Final = {
    "rollouts": Place(EVERY_COMMAND - {"status", "forward", "replay"}, {"OTEL_TRACES_EXPORTER": "delta"}),
    "spool": Place(EVERY_COMMAND - {"table compact", "table prune", "table verify"}),
    "mlflow.db": Place(
        frozenset({*ARGUMENTS_FOR_MLFLOW, "demo", "doctor"}),
        {"OTEL_TRACES_EXPORTER": "mlflow", "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"},
        {**ARGUMENTS, **ARGUMENTS_FOR_MLFLOW},
        ("otel_rollout.look.sources.mlflow_source", "mlflow.tracing.client"),
    ),
}

Fault: TypeAlias = Callable[[Path], None]


def begin(place: Path) -> None:
    """Begin a table or a database, if it is not there."""
    if place.name == "mlflow.db":
        place.touch()
    else:
        (place / "_delta_log").mkdir(parents=True, exist_ok=True)


def remove(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.unlink(missing_ok=True)


def unreadable(place: Path) -> None:
    begin(place)
    place.chmod(0)


def of_the_wrong_type(place: Path) -> None:
    """Put a file where a directory should be, or a directory where a file should be."""
    remove(place)
    if place.name == "mlflow.db":
        place.mkdir()
    else:
        place.touch()


def link_to_nothing(place: Path) -> None:
    remove(place)
    place.symlink_to("nothing")


def link_to_itself(place: Path) -> None:
    remove(place)
    place.symlink_to(place.name)


def of_another_user(place: Path) -> None:
    begin(place)
    place.chmod(0o700 if place.is_dir() else 0o600)
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY)


REASONS: Final[Mapping[Fault, str]] = {
    unreadable: "Permission denied|is not writable",
    of_the_wrong_type: "Not a directory|Is a directory|is a file|is not a directory",
    link_to_nothing: "is a link to nothing|No such file|There is no database|is not a directory",
    link_to_itself: "Too many levels of symbolic links|There is no database|is not a directory",
    of_another_user: f"Permission denied|belongs to user id {NOBODY}",
}


def folder(parent: Path, archived: Path, name: str, fault: Fault | None) -> Path:
    """Make a folder with a spool and a file of spans, and spoil a place in it."""
    made = parent / f"{fault.__name__ if fault else 'sound'}"
    shutil.copytree(archived.parent.parent, made / "spool")
    shutil.copy(next((archived / "archive").iterdir()), made / "spans.jsonl.zst")
    if fault:
        fault(made / name)
    return made


def answers(place: Place, cases: Iterable[tuple[Path, str]], port: str = "0") -> Iterator[tuple[int, str]]:
    """Run commands in folders, without root's rights; yield their exit statuses and outputs.

    Args:
        place: what is spoilt in the folders.
        cases: folders and commands.
        port: port of the pages.
    """
    described = [
        (
            [*command.split(), *(port if word == "0" else word for word in place.arguments[command])],
            str(of),
            {
                **place.variables,
                "OTEL_ROLLOUT_SPOOL_DIR": str(of / "spool"),
                "OTEL_TEST_FILE": str(of / "delivered"),
                "COLUMNS": "300",
            },
        )
        for of, command in cases
    ]
    program = [sys.executable, "-m", "tests.cli.programs.commands_in_places", *place.modules]
    if os.geteuid() == 0:
        program[:0] = ["setpriv", f"--bounding-set={RIGHTS_OF_ROOT}", f"--inh-caps={RIGHTS_OF_ROOT}"]
    ran = subprocess.run(
        program, input=json.dumps(described), capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr
    yield from json.loads(ran.stdout)


def assert_refused(name: str, faults: Iterable[Fault], archived: Path, parent: Path) -> None:
    """Check that every command that uses a place names it and the reason, whatever its fault."""
    place = PLACES[name]
    spoilt = {folder(parent, archived, name, fault): fault for fault in faults}
    cases = list(product(spoilt, sorted(place.users)))
    for (of, command), (status, output) in zip(cases, answers(place, cases), strict=True):
        said = f"{command}, {of.name}: {status}\n{output}"
        assert status == OWN_STATUS.get(command, 2), said
        assert "Traceback" not in output, said
        lines = [line for line in output.splitlines() if re.search(REASONS[spoilt[of]], line)]
        assert any(name in line for line in lines), said
        assert command in OWN_STATUS or output.splitlines() == lines[:1], said


def test_every_command_is_in_the_sweep() -> None:
    """The commands here are those of the program."""
    assert {path for path, command in COMMANDS.items() if not hasattr(command, "commands")} == EVERY_COMMAND


@pytest.mark.parametrize("name", PLACES)
def test_command_names_the_place_that_it_cannot_use(name: str, archived: Path, tmp_path: Path) -> None:
    """It ends with one line, which has the reason, and with status 2."""
    faults = (unreadable, of_the_wrong_type, link_to_nothing, link_to_itself)
    assert_refused(name, faults, archived, tmp_path)


@pytest.mark.parametrize("name", PLACES)
def test_command_names_the_place_of_another_user(name: str, archived: Path, tmp_path: Path) -> None:
    """It ends with one line, which has the reason, and with status 2; only root can give places away."""
    assert_refused(name, [of_another_user], archived, tmp_path)


@pytest.mark.parametrize("name", PLACES)
def test_command_that_does_not_use_the_place_is_not_disturbed(
    name: str, archived: Path, tmp_path: Path
) -> None:
    """It ends as in a sound folder."""
    place = PLACES[name]
    folders = [folder(tmp_path, archived, name, fault) for fault in (None, link_to_itself)]
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that `view` ends
        cases = list(product(sorted(EVERY_COMMAND - place.users), folders))
        found = list(answers(place, [(of, command) for command, of in cases], str(taken.getsockname()[1])))
    for (command, _), sound, spoilt in zip(cases[::2], found[::2], found[1::2], strict=True):
        assert spoilt[0] == sound[0], (command, sound, spoilt)
        assert "Traceback" not in spoilt[1], (command, spoilt)
