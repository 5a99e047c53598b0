"""Print lines that a person copies."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from rich.console import Console


def print_plain(console: Console, line: str) -> None:
    """Print a line without markup, colours or line breaks."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def installed_command(name: str) -> str:
    """Return a command beside this Python: its name, or its path if the name is not on the PATH."""
    beside = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if beside.exists() and not (found and Path(found).samefile(beside)):
        return shlex.quote(from_here(beside))
    return name


def from_here(path: Path) -> str:
    """Return a path as a person in this directory types it: relative if it is below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
