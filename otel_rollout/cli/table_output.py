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
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, get_args

from rich.console import Console

from otel_rollout.base.printable import in_one_line, printable
from otel_rollout.cli.page_output import tell
from otel_rollout.look.fitted_table import TableColumn, print_fitted
from otel_rollout.look.listings import ListedColumn, cell
from otel_rollout.table.query import dicts_of

if TYPE_CHECKING:
    from arro3.core import Table as ArrowTable

Format = Literal["table", "csv", "json", "parquet"]
FORMATS: Final = get_args(Format)
_NUMBERS: Final = (int, float)
_IN_TEXT: Final = (date, time, timedelta, Decimal, bytes)
"""Types of values that CSV and JSON have as text; a ``datetime`` is a ``date``."""


def print_table(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[ListedColumn],
    notes: Iterable[str],
    is_wide: bool = False,
) -> None:
    """Print the columns that the terminal has room for, with notes below.

    A column without values is left out, unless its rank is 0.

    Args:
        rows: the rows, as dicts.
        columns: the columns, in their order.
        notes: lines below the table.
        is_wide: whether to print all columns in full width.
    """
    found = [_column(rows, each, is_wide) for each in columns]
    shown = [column for column in found if column.rank == 0 or any(column.cells)]
    if rows:
        print_fitted(Console(highlight=False), shown, "--wide shows every column", is_wide=is_wide)
    tell(*notes)


def _column(rows: Sequence[dict[str, Any]], of: ListedColumn, is_wide: bool) -> TableColumn:
    values = [row[of.name] for row in rows]
    is_number = any(isinstance(value, _NUMBERS) for value in values)
    cells = [cell("name" if is_wide and of.form == "id" else of.form, value) for value in values]
    is_whole = is_number or of.form in ("name", "id")
    return TableColumn(in_one_line(of.name), cells, of.rank or 0, is_number, "whole" if is_whole else "cut")


def write(rows: ArrowTable, format_: Format, output: Path | None) -> None:
    """Write rows as CSV or JSON, to a file or standard output.

    On a terminal, control characters become visible; a file or pipe has the text unchanged.

    Raises:
        OSError: the file cannot be written.
    """
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
