"""Run the blocks of a page of the docs as a reader does: one after another, in one folder and one shell."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LEFT_OUT = "…"
"""What stands for text that the page leaves out, and commands cut."""
_VARIABLES = "variables of the shell"


class Block(NamedTuple):
    """A fenced block of a page.

    Attributes:
        language: what the fence names: ``bash``, ``python``, ``text``.
        text: the content.
        output: the content of the block of text below, if the next block is one.
    """

    language: str
    text: str
    output: str


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page's text, each with the output that the page shows for it."""
    found = _BLOCK.findall(page)
    following = [*found[1:], ("", "")]
    return [
        Block(language, text, after[1] if after[0] == "text" else "")
        for (language, text), after in zip(found, following, strict=True)
        if language != "text"
    ]


class Shell:
    """A shell whose variables last from one block to the next."""

    def __init__(self, directory: Path, variables: Mapping[str, str]) -> None:
        self.directory = directory
        self.variables = dict(variables)

    def run(self, commands: str) -> str:
        """Run commands; return what they print, errors too. Each command has to succeed."""
        kept = self.directory / _VARIABLES
        ran = subprocess.run(
            ["bash", "-e", "-c", f"{commands}\nenv -0 > '{kept}'"],
            cwd=self.directory, env=self.variables, text=True, timeout=600, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert ran.returncode == 0, f"{commands}\n{ran.stdout}"
        self.variables = dict(entry.split("=", 1) for entry in kept.read_text().split("\0") if entry)
        kept.unlink()
        return ran.stdout


def missing_lines(shown: str, printed: str) -> list[str]:
    """Return the lines of a page's block that a command did not print, in any order.

    Blanks count as one, and ``…`` stands for any text.
    """
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    return [line for line in shown.splitlines() if not any(_is_line(line, each) for each in lines)]


def _is_line(shown: str, printed: str) -> bool:
    parts = (re.escape(" ".join(part.split())) for part in _parts(shown))
    return re.fullmatch(r"\s*" + r".*".join(parts) + r"\s*", printed) is not None


def _parts(shown: str) -> Iterator[str]:
    yield from shown.split(_LEFT_OUT)
