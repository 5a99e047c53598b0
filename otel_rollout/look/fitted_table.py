"""Print a table that fits into the terminal, without the columns that have no room."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.box import HEAVY_HEAD, Box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otel_rollout.base.printable import in_one_line

NO_LIMIT: Final = 100_000
"""Width, in characters, without a terminal: a pipe or a file gets whole tables."""
_SHORT: Final = 16
"""Width, in characters, to which a text is shortened before a column is left out."""
_MIN_WIDTH: Final = 3
"""Least width of a column, in characters: a table that cannot fit keeps its frame."""
_COMMAND: Final = re.compile(r"`[^`\n]*`|(?<=: )(?:otel-rollout|pip) .*?(?= \(|\. |$)", re.MULTILINE)
"""Matches what a person pastes in a sentence: text between backquotes, or a command after a colon."""
_NO_BREAK: Final = "\0"
STATES: Final = {
    "ok": "green", "error": "bold red", "failed": "bold red", "running": "yellow",
    "warn": "yellow", "fail": "bold red",
}  # fmt: skip
"""Style of a state or verdict, wherever it is a cell."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Attributes:
        heading: its heading, which may break after ``_`` and blanks.
        cells: a text per row.
        rank: without room, the columns with the highest ranks are left out first, but never rank 0.
        is_number: whether its cells are aligned at the right.
        long: what happens to a long text: ``whole`` keeps its line, so that a name can be pasted; ``cut``
            shortens it.
    """

    heading: str
    cells: Sequence[str]
    rank: int = 0
    is_number: bool = False
    long: Literal["whole", "cut"] = "whole"

    @property
    def body(self) -> int:
        """Characters that the longest line of a cell takes."""
        return max((cell_len(line) for cell in self.cells for line in cell.split("\n")), default=0)

    @property
    def natural(self) -> int:
        """Characters that the column takes with its whole heading."""
        return max(self.body, cell_len(self.heading))

    @property
    def least(self) -> int:
        """Characters that the column needs; with fewer it is left out."""
        words = (cell_len(word) for word in _broken(self.heading).split("\n"))
        return max(self.body if self.long == "whole" else min(self.body, _SHORT), *words)


def columns_of(
    rows: Sequence[Sequence[str]], ranks: Mapping[str, int], texts: Container[str] = ()
) -> list[TableColumn]:
    """Return the columns of rows.

    Args:
        rows: the cells of each row, in the order of the headings.
        ranks: heading → rank.
        texts: headings of the columns that are aligned at the left.
    """
    return [
        TableColumn(heading, [in_one_line(row[place]) for row in rows], rank, heading not in texts)
        for place, (heading, rank) in enumerate(ranks.items())
    ]


def room(console: Console) -> int:
    """Return the width that a table may have: the terminal's, or no limit for a pipe and a file."""
    return console.width if console.is_terminal or os.environ.get("COLUMNS") else NO_LIMIT


def print_sentence(console: Console, text: Text, indent: str = "") -> None:
    """Print lines of words: on a terminal broken at blanks outside of commands only, in a pipe whole."""
    width = console.width if console.is_terminal else NO_LIMIT
    fill = textwrap.TextWrapper(width, "", indent, break_long_words=False, break_on_hyphens=False).fill
    whole = _COMMAND.sub(lambda match: match[0].replace(" ", _NO_BREAK), text.plain)
    lines = "\n".join(map(fill, whole.split("\n"))).replace(_NO_BREAK, " ")
    console.print(Text(lines, text.style), soft_wrap=True)


def print_fitted(
    console: Console,
    columns: Sequence[TableColumn],
    more: str = "a wider terminal has it",
    box: Box = HEAVY_HEAD,
    is_wide: bool = False,
) -> None:
    """Print the columns that the terminal has room for, or all columns if ``is_wide``; see :func:`fitted`."""
    for part in fitted(columns, NO_LIMIT if is_wide else room(console), more, box):
        console.print(part, crop=False)


def fitted(
    columns: Sequence[TableColumn], width: int, more: str, box: Box = HEAVY_HEAD, padding: int = 1
) -> list[Table | Text]:
    """Return a table of the columns that fit, and a line that names the other columns.

    Args:
        columns: the columns.
        width: characters that the table may take.
        more: how to see the other columns, for the line.
        box: its frame.
        padding: blanks at each side of a cell.
    """
    total = 1 if box is HEAVY_HEAD else -1  # the frame's edges
    beside = 2 * padding + 1  # characters of a cell beside its text, with a line
    chosen, left = _chosen(columns, width - total, beside)
    table = Table(box=box, pad_edge=box is HEAVY_HEAD, padding=(0, padding))
    for column in chosen:
        size = _size(column, left)
        left += column.least - size
        heading = column.heading if cell_len(column.heading) <= size else _broken(column.heading)
        table.add_column(Text(heading), justify="right" if column.is_number else "left", width=size)
        total += size + beside
    for row in zip(*(column.cells for column in chosen), strict=True):
        table.add_row(*map(_cell, row, chosen))
    table.width = max(total, 1)
    left_out = ", ".join(column.heading for column in columns if column not in chosen)
    gap = "" if box is HEAVY_HEAD else "\n"  # as below a table without a frame
    note = Text(f"no room for {left_out}: {more}{gap}", "dim", overflow="ignore")
    return [table, note] if left_out else [table]


def _chosen(columns: Sequence[TableColumn], room: int, beside: int) -> tuple[list[TableColumn], int]:
    """Return the columns that fit, in their order, and how much room they leave."""
    chosen: set[int] = set()
    for index in sorted(range(len(columns)), key=lambda index: columns[index].rank):
        size = columns[index].least + beside
        if size <= room or not columns[index].rank:
            chosen.add(index)
            room -= size
    return [columns[index] for index in sorted(chosen)], room


def _size(column: TableColumn, left: int) -> int:
    """Return the width of a column; without room, it is too narrow for names, which are then folded."""
    if left < 0:
        return max(_MIN_WIDTH, column.least + left)
    grown = min(column.natural, column.least + left)
    return grown if column.long != "whole" or grown == column.natural else column.least


def _broken(heading: str) -> str:
    return heading.replace("_", "_\n").replace(" ", "\n")


def _cell(text: str, column: TableColumn) -> Text:
    if column.long == "cut":
        return Text(text, STATES.get(text, ""), no_wrap=True, overflow="ellipsis")
    return Text(text, STATES.get(text, ""), overflow="fold")
