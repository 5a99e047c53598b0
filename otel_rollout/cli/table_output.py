"""Write rows as a table, CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, get_args

from otel_rollout.base.printable import in_one_line, printable

if TYPE_CHECKING:
    from arro3.core import Table as ArrowTable
    from rich.table import Table

Format = Literal["table", "csv", "json", "parquet"]
FORMATS: Final = get_args(Format)
_MAX_CELL: Final = 200
"""Maximum characters of a value in a table."""
_DIGITS: Final = 6
_SECONDS: Final = "seconds"
"""Word in the names of columns that hold durations."""
_SECONDS_DIGITS: Final = 3
_NO_LIMIT: Final = 10_000
"""Columns of the console in which a table's natural width is measured."""
_NUMBERS: Final = (int, float)
_IN_TEXT: Final = (date, time, timedelta, Decimal, bytes)
"""Types of values that CSV and JSON have as text; a ``datetime`` is a ``date``."""
_STATES: Final = {"error": "bold red", "running": "yellow"}


def print_table(rows: Sequence[dict[str, Any]], columns: Sequence[str], notes: Iterable[str]) -> None:
    """Print rows as a table, with notes below.

    On a terminal that is narrower than the table, headings break after underscores.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.text import Text

    console = Console(highlight=False)
    # Like the list of `show`: a name that is cut or wrapped cannot be pasted.
    unbounded = console.options.update_width(_NO_LIMIT)
    table = _table(rows, columns)
    width = Measurement.get(console, unbounded, table).maximum
    if console.is_terminal and width > console.width:
        table = _table(rows, columns, heading=lambda name: name.replace("_", "_\n"))
        width = Measurement.get(console, unbounded, table).maximum
    console.width = max(console.width, width)
    console.print(table)
    for note in notes:
        console.print(Text(printable(note)), soft_wrap=True)


def _table(
    rows: Sequence[dict[str, Any]], columns: Sequence[str], heading: Callable[[str], str] = str
) -> Table:
    """Return rows as a table that wraps nothing."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in columns:
        is_number = any(isinstance(row[name], _NUMBERS) for row in rows)
        head = Text(heading(in_one_line(name)))
        table.add_column(head, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(text := _cell(name, row[name]), _STATES.get(text, "")) for name in columns))
    return table


def write(rows: ArrowTable, format_: Format, output: Path | None) -> None:
    """Write rows as CSV or JSON, to a file or standard output.

    On a terminal, control characters become visible; a file or pipe has the text unchanged.

    Raises:
        OSError: the file cannot be written.
    """
    from otel_rollout.table.row_set import dicts_of

    found, columns = dicts_of(rows), list(rows.column_names)
    text = io.StringIO(newline="")
    (_write_csv if format_ == "csv" else _write_json)(found, columns, text)
    if output is not None and str(output) != "-":
        output.write_text(text.getvalue(), encoding="utf-8", newline="")
    else:
        shown = text.getvalue()
        sys.stdout.write(printable(shown) if sys.stdout.isatty() else shown)


def write_parquet(write_file: Callable[[Path], None], output: Path | None) -> None:
    """Write a Parquet file, or its bytes to a pipe.

    Args:
        write_file: writes the rows to a new file.
        output: the file; None for standard output.

    Raises:
        OSError: the file cannot be written.
    """
    is_piped = output is None or str(output) == "-"
    target = Path.cwd() if output is None or is_piped else output.absolute().parent
    with tempfile.TemporaryDirectory(prefix=".otel-rollout-", dir=None if is_piped else target) as directory:
        written = Path(directory) / "rows.parquet"
        write_file(written)
        if output is None or is_piped:
            sys.stdout.buffer.write(written.read_bytes())
        else:
            os.replace(written, output)


def _write_csv(rows: Sequence[dict[str, Any]], columns: Sequence[str], file: IO[str]) -> None:
    writer = csv.writer(file)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_in_csv(row[name]) for name in columns])


def _in_csv(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        return json.dumps(_in_json(value))
    return _as_text(value) if isinstance(value, _IN_TEXT) else value


def _write_json(rows: Sequence[dict[str, Any]], columns: Sequence[str], file: IO[str]) -> None:
    lines = (json.dumps(_in_json(row), ensure_ascii=False) for row in rows)
    file.write("[\n" + ",\n".join(lines) + "\n]\n" if rows else "[]\n")


def _in_json(value: Any) -> Any:
    """Return a value that JSON has: times, exact decimals, bytes, infinities and NaN as text."""
    if isinstance(value, _IN_TEXT):
        return _as_text(value)
    if isinstance(value, dict):
        return {name: _in_json(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_json(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    if _SECONDS in column.split("_") and type(value) in _NUMBERS:
        return f"{value:.{_SECONDS_DIGITS}f}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.1f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.{_DIGITS}g}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    text = in_one_line(value.hex() if isinstance(value, bytes) else str(value))
    return text if len(text) <= _MAX_CELL else text[:_MAX_CELL] + "…"
