"""Print lines that a person copies."""

from __future__ import annotations

from rich.console import Console


def print_plain(console: Console, line: str) -> None:
    """Print a line without markup, colours or line breaks."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
