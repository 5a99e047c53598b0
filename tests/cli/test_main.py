"""Options, output and errors of the command."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, ON_A_TERMINAL, run


def test_show_of_a_pipe_is_refused(tmp_path: Path) -> None:
    """The command does not read a pipe, which may have no writer."""
    os.mkfifo(tmp_path / "pipe")
    output = run("show", "--from", tmp_path / "pipe", code=2)
    assert f"{tmp_path}/pipe is neither a file nor a directory" in output


@pytest.mark.parametrize("arguments", [("status",), ("status", "--json"), ("show",), ("doctor",)])
def test_output_to_a_full_disk_ends_with_one_line(archived: Path, arguments: tuple[str, ...]) -> None:
    """A command whose output cannot be written ends with one line and status 2."""
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert ran.returncode == 2
    assert ran.stderr == "The output cannot be written: No space left on device\n"


@pytest.mark.parametrize("closed", [">&-", ">&- <&-"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--format", "csv"),
        ("list", "--format", "parquet"),
        ("groups",),
        ("show",),
        ("--help",),
    ],
)
def test_closed_output_ends_with_one_line(
    archived: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], closed: str
) -> None:
    """No traceback, and no file that the command opens takes the place of the output."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    source = [] if "--help" in arguments else ["--from", archived]
    ran = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *arguments, *source],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "The output cannot be written: standard output is not open for writing\n"


def test_reader_who_leaves_ends_a_command_silently(archived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `| head` does: what is still in a buffer at the end causes no traceback."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run(
        [*COMMAND, "list", "--from", archived, "--format", "csv"],
        stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(write)
    assert (ran.returncode, ran.stderr) == (1, "")


def test_status_in_80_columns_has_whole_headings(archived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns have room for every heading, and a width of 0 counts as unknown."""
    for columns in ("80", "0"):
        monkeypatch.setenv("COLUMNS", columns)
        output = run("status", "--steps")
        table = [line for line in output.splitlines() if line[:1] in ("┏", "┃", "│")]
        assert max(map(len, table)) <= 80
        for heading in ("recorded", "delivered", "rejected", "pending", "unfinished", "retried"):
            assert heading in output


def test_contradictory_options_and_empty_names_are_refused(archived: Path) -> None:
    """--json with --watch, and --to without a name, end with an error."""
    assert "--watch is for people" in run("status", "--json", "--watch", code=2)
    assert "names no exporter" in run("forward", "--to", " , ", code=2)
    assert "0 pending" in run("forward", "--to", "test-file,")


def test_watched_status_is_refreshed_until_ctrl_c(archived: Path) -> None:
    """`status --watch` refreshes the report.

    Ctrl-C ends the command with status 0.
    """
    master, slave = pty.openpty()
    command = [*ON_A_TERMINAL, "status", "--watch"]
    with subprocess.Popen(command, stdout=slave, stderr=slave, close_fds=True) as process:
        os.close(slave)
        seen = ""
        while seen.count("recorded = delivered") < 2:
            seen += os.read(master, 4096).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    os.close(master)


def test_progress_of_a_replay_is_shown_on_a_terminal(archived: Path, target: Path) -> None:
    """A terminal shows the numbers of delivered and of all spans; no rate before one is delivered."""
    fault = Path(f"{target}.fault")
    fault.write_text("unavailable")
    master, slave = pty.openpty()
    command = [*COMMAND, "replay", archived, "--to", "test-faulty"]
    with subprocess.Popen(command, stdout=slave, stderr=slave, close_fds=True) as process:
        os.close(slave)
        seen = ""
        while not re.search(r"delivering spans, 0 of 30, \d+ s[^;]", seen):
            seen += os.read(master, 4096).decode(errors="replace")
        fault.unlink()
        with contextlib.suppress(OSError):  # the process has ended
            while os.read(master, 4096):
                pass
        assert process.wait(60) == 0
    os.close(master)


def test_argument_without_its_option_is_told_of_the_source_option(tmp_path: Path) -> None:
    """`view` takes a path, so people give one to the other commands: one line, which breaks no path."""
    dump = tmp_path / "a-folder-with-a-name-of-many-characters" / "and-a-file-with-another-long-name.jsonl"
    for command in (("report",), ("list",), ("timeline",), ("health",), ("query", "SELECT 1"), ("export",)):
        said = run(*command, dump, code=2)
        assert said == f"{dump} belongs to no option: --from names what is read.\n"


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ("timeline 3", "3 belongs to no option: a step is --step 3."),
        ("steps 2", "2 belongs to no option: a step is --step 2."),
        ("report --format json", "There is no option --format. Did you mean --json?"),
        ("list --json", "There is no option --json. Did you mean --format?"),
    ],
)
def test_argument_that_another_command_takes_is_told_of_its_option(arguments: str, advice: str) -> None:
    """A lone number is a step, and the option for JSON has two names."""
    assert run(*arguments.split(), code=2) == f"{advice}\n"
