"""Print lines that a person copies."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rich.console import Console


def print_plain(console: Console, line: str) -> None:
    """Print a line without markup, colours or line breaks."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def installed_command(name: str) -> str:
    """Return a command beside this Python: its name, or its full path if the name is not on the PATH."""
    beside = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if beside.exists() and not (found and Path(found).samefile(beside)):
        return str(beside)
    return name
