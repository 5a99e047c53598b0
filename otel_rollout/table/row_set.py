"""Hold a query on a view, and run it when its rows are wanted."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from otel_rollout.base.printable import in_one_line
from otel_rollout.table import filters
from otel_rollout.table.query import Engine, dicts_of

if TYPE_CHECKING:
    from arro3.core import Table

_MAX_SHOWN: Final = 20
"""Maximum rows of a notebook's display."""
_MAX_CELL: Final = 120
"""Maximum characters of a value in a notebook's display."""


class Rows:
    """Rows of a view or query, read once. Methods that narrow or sort them return a new object.

    The object is an Arrow stream: ``polars.DataFrame(rows)``, ``pyarrow.table(rows)`` and
    ``duckdb.sql("SELECT … FROM rows")`` take it.

    Args:
        engine: runs the query.
        source: a view's name, or a user's query.
    """

    def __init__(self, engine: Engine, source: str) -> None:
        self._engine = engine
        self._source = source
        self._conditions: tuple[str, ...] = ()
        self._order: tuple[str, ...] = ()
        self._limit: int | None = None
        self._columns: tuple[str, ...] = ()
        self._types: dict[str, str] | None = None
        self._table: Table | None = None

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns or self._column_types())

    def filter(self, **values: Any) -> Rows:
        """Keep rows by their values: ``filter(step="1-3", reward="<0.1", state="error")``.

        Args:
            values: column and value, several values, or for a column of numbers a text such as ``1-3`` or
                ``<0.1``. A step may be a text too; None or ``-`` is none.

        Raises:
            QueryError: there is no such column, or a text cannot be read.
        """
        types = self._column_types()
        conditions = (
            filters.matching_steps(value)
            if name == "step" and "step_text" in types
            else filters.matching(name, types[filters.known(name, list(types))], value)
            for name, value in values.items()
        )
        return self._narrowed(*conditions)

    def where(self, condition: str) -> Rows:
        """Keep rows by a SQL condition: ``where("reward < 0.1 AND tool_errors > 0")``.

        Raises:
            QueryError: the text is no single expression.
        """
        return self._narrowed(filters.where(condition))

    def sort(self, *columns: str) -> Rows:
        """Sort by columns; ``-reward`` is descending.

        Raises:
            QueryError: there is no such column.
        """
        known = list(self._column_types())
        return self._limited()._with(_order=tuple(filters.order(column, known) for column in columns))

    def limit(self, number: int) -> Rows:
        """Keep the first rows. Later calls apply to these rows alone.

        Raises:
            QueryError: the number is no integer, or negative.
        """
        wanted = filters.row_count(number)
        return self._with(_limit=wanted if self._limit is None else min(wanted, self._limit))

    def select(self, *columns: str) -> Rows:
        """Keep columns.

        Raises:
            QueryError: there is no such column.
        """
        known = list(self._column_types())
        return self._with(_columns=tuple(filters.known(column, known) for column in columns))

    def arrow(self) -> Table:
        """Return the rows as an Arrow table (arro3), which every Arrow library takes."""
        if self._table is None:
            self._table = self._engine.run(self.statement())
        return self._table

    def pandas(self) -> Any:
        """Return the rows as a pandas DataFrame; needs pandas and pyarrow."""
        import pyarrow

        return pyarrow.table(self.arrow()).to_pandas()

    def polars(self) -> Any:
        """Return the rows as a Polars DataFrame; needs polars."""
        import polars

        return polars.DataFrame(self.arrow())

    def duckdb(self) -> Any:
        """Return the rows as a relation of DuckDB; needs duckdb."""
        import duckdb

        return duckdb.from_arrow(self.arrow())

    def dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dicts."""
        return dicts_of(self.arrow())

    def statement(self) -> str:
        """Return the query as SQL."""
        columns = ", ".join(self._columns) or "*"
        order = f" ORDER BY {', '.join(self._order)}" if self._order else ""
        limit = "" if self._limit is None else f" LIMIT {self._limit}"
        chosen = f"{filters.all_of(self._conditions)}{order}{limit}"
        is_query = not self._source.isidentifier()
        if is_query and not chosen and not self._columns:
            return self._source
        source = f"(\n{self._source}\n)" if is_query else self._source
        return f"SELECT {columns} FROM {source}{chosen}"  # noqa: S608

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.dicts())

    def __len__(self) -> int:
        return self.arrow().num_rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<{len(self)} rows: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        """Return the first rows as a table of HTML, for notebooks."""
        from html import escape

        table = self.arrow()
        names = list(table.column_names)
        shown = dicts_of(table.slice(0, min(_MAX_SHOWN, table.num_rows)))
        head = "".join(f"<th>{escape(in_one_line(name))}</th>" for name in names)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(_cell(row[name]))}</td>' for name in names)}</tr>" for row in shown
        )
        more = f"<p>{table.num_rows} rows, the first {len(shown)} shown</p>"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def _column_types(self) -> dict[str, str]:
        """Return the names and Arrow types of the source's columns."""
        if self._types is None:
            whole = Rows(self._engine, self._source).statement()
            first = self._engine.run(f"SELECT * FROM (\n{whole}\n) LIMIT 0")  # noqa: S608
            self._types = {
                name: str(first.schema.field(name).type).strip().partition("<")[2].removesuffix(">")
                for name in first.column_names
            }
        return self._types

    def _narrowed(self, *conditions: str) -> Rows:
        limited = self._limited()
        return limited._with(_conditions=(*limited._conditions, *conditions))

    def _limited(self) -> Rows:
        """Return the rows with their limit in a subquery, so that later conditions apply after the limit."""
        if self._limit is None:
            return self
        first = self._with(_columns=()).statement()
        return self._with(_source=first, _conditions=(), _limit=None)

    def _with(self, **changes: Any) -> Rows:
        """Return a copy with other attributes, whose rows are not read yet."""
        changed = copy.copy(self)
        vars(changed).update(changes, _table=None)
        return changed


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return in_one_line(text if len(text) <= _MAX_CELL else text[:_MAX_CELL] + "…")
