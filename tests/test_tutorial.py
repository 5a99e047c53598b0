"""docs/tutorial.md: its blocks run one after another, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import urlopen

from otel_rollout.base.environment import PREFIXES
from tests.page_session import Block, Shell, blocks_of, missing_lines
from tests.waiting import wait_for

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
PROGRAM = "rollout.py"
VIEW = "otel-rollout view\n"
INSTALL = "pip install"
FURTHER = "\n## Coming from another tracer\n"
"""What is behind it is run by tests of its own."""


def reader(directory: Path, python: Path = Path(sys.executable)) -> Shell:
    """Return the shell of a reader who has installed the package, on a terminal of 140 columns."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    path = f"{python.parent}:{kept['PATH']}"
    return Shell(directory, {**kept, "PATH": path, "TMPDIR": str(directory), "COLUMNS": "140"})


def followed_by(shell: Shell) -> int:
    """Run the page's blocks as a reader does; return how many lines of output were compared."""
    compared = 0
    for block in blocks_of(PAGE.read_text().partition(FURTHER)[0]):
        if block.language == "python":
            (shell.directory / PROGRAM).write_text(block.text)
        elif block.text == VIEW:
            see_a_trajectory(shell, block)
        elif INSTALL not in block.text:  # tests/package installs what users get
            printed = shell.run(block.text)
            assert missing_lines(block.output, printed) == [], printed
            compared += len(block.output.splitlines())
    return compared


def test_tutorial_leads_to_the_cause(tmp_path: Path) -> None:
    """Every command prints the lines that the page shows below it; the browser shows a trajectory."""
    assert followed_by(reader(tmp_path)) > 60


def test_page_that_shows_another_line_fails() -> None:
    """A line that no command printed is found; blanks, order and what is left out do not count."""
    printed = "reward   0.0\n│ 4/0 │ abc │ 1 │  \nlast\n"
    assert missing_lines("last\nreward 0.0\n│ 4/0 │ … │ 1 │\n", printed) == []
    assert missing_lines("reward 0.5\n│ 4/0 │ … │ 2 │\n", printed) == ["reward 0.5", "│ 4/0 │ … │ 2 │"]


def see_a_trajectory(shell: Shell, block: Block) -> None:
    """Follow the links of the pages that `view` serves, as the page says: run, step, group, trajectory."""
    with viewing(shell) as (address, printed):
        assert missing_lines(block.output.replace(":8642", ":…"), printed) == [], printed
        for kind, named in (("/run?", "experiment=first"), ("/step?", "step=1"), ("/group?", "name=1%2F0")):
            address = linked(address, kind, named)
        trajectory = page_at(linked(address, "/trajectory?", "name=1%2F0%2F1"))
        for text in ("Capital of Chile?", "look_up", "Santiago", "reward"):
            assert text in trajectory


@contextmanager
def viewing(shell: Shell) -> Iterator[tuple[str, str]]:
    """Serve the pages on a free port; yield their address and what the command printed."""
    command = ["otel-rollout", "view", "--port", "0"]
    with subprocess.Popen(
        command, cwd=shell.directory, env=shell.variables, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            printed = server.stdout.readline() + server.stdout.readline()
            (address,) = re.findall(r"http://\S+", printed)
            yield address, printed
        finally:
            server.terminate()


def linked(address: str, kind: str, named: str) -> str:
    """Return the address that the first link of a kind, with a name in it, on a page leads to."""
    targets = (unescape(target) for target in re.findall(r'href="([^"]*)"', page_at(address)))
    return urljoin(address, next(each for each in targets if each.startswith(kind) and each.endswith(named)))


def page_at(address: str) -> str:
    """Return the page at an address, once the server has prepared the run."""

    def answered() -> str:
        try:
            with urlopen(address, timeout=60) as answer:
                text: str = answer.read().decode()
        except HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return ""
        return text

    return wait_for(answered, 120, address)
