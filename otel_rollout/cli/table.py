"""Implement the commands ``list``, ``groups``, ``steps`` and ``query``: ask the rollout table's views."""

from __future__ import annotations

import functools
import inspect
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from otel_rollout.base.suggest import unknown
from otel_rollout.cli.dumps import reading, source_options
from otel_rollout.cli.page_output import writing
from otel_rollout.cli.sources import as_table
from otel_rollout.cli.table_output import FORMATS, Format, print_table, write, write_parquet
from otel_rollout.look.analysis.run_choice import Run, paths_of, reference_of, run_of
from otel_rollout.look.conversation.formatting import command
from otel_rollout.look.listings import LISTINGS, STEPS, ListedColumn, Listing, of_query
from otel_rollout.table import figures, filters, views
from otel_rollout.table.query import Engine, dicts_of
from otel_rollout.table.select import QueryError
from otel_rollout.table.store import Store

if TYPE_CHECKING:
    from arro3.core import Table

_PAGE: Final = 50
"""Rows that a table shows unless ``--limit`` says otherwise."""
_NUMBERS: Final = "NUMBERS are a number, a range 1-3, a comparison '<0.1', or several with commas."
_OF_OPENED: Final = {"show": ("trace_id", "path", *Run._fields), "group": ("path", *Run._fields)}
"""Command → columns of a row by which it opens the row."""

SOURCES: Final = (
    "A rollout table (directory or s3://…), a spool, run or node directory, a file of OTLP JSON Lines, {} "
    "\\[default: OTEL_ROLLOUT_DELTA_URI, a table at ./rollouts, or the spool]"
)
"""Help of ``--from``; ``{}`` stands for the last sources in the list."""
_DUMP: Final = "or a framework's dump (PATH or FORMAT:PATH)."
FromOption = Annotated[str | None, typer.Option("--from", help=SOURCES.format(_DUMP))]
StepOption = Annotated[str | None, typer.Option("--step", help=STEPS, metavar="STEPS")]
RunOption = Annotated[
    str | None, typer.Option("--run", help="A run's id or experiment, or `latest`. \\[default: all]")
]
NewestRunOption = Annotated[
    str | None, typer.Option("--run", help="A run's id or experiment. \\[default: the newest run]")
]
WhereOption = Annotated[
    str | None, typer.Option("--where", help="A SQL condition on the view's columns.", metavar="SQL")
]
SortOption = Annotated[
    str | None, typer.Option("--sort", help="A column; -COLUMN is descending. Several with commas.")
]
LimitOption = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=0,
        metavar="ROWS",
        help=f"Maximum rows; 0 for all. \\[default: {_PAGE} as a table, else all]",
    ),
]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", help="Columns to show, with commas.", metavar="NAME,…")
]
WideOption = Annotated[
    bool, typer.Option("--wide", help="Show every column whole, however wide the terminal is.")
]
FormatOption = Annotated[str, typer.Option("--format", help=", ".join(FORMATS) + ".")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of standard output.")
]


def command_of(view: str, help_: str = "", answer: Callable[..., None] | None = None) -> Callable[..., None]:
    """Return a command for the rows of a view.

    The command's options are the filters of the view's columns, and the keyword arguments of ``answer``.

    Args:
        view: the view.
        help_: what the command does; by default the help of the view's listing.
        answer: runs the command with the view and the options; by default lists the rows.
    """
    listing, answer = LISTINGS[view], answer or _list

    command = functools.partial(answer, view)
    command.__doc__ = f"{help_ or listing.help}\n\n{_NUMBERS}"
    first, *others = (
        parameter
        for parameter in inspect.signature(answer, eval_str=True).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    )
    command.__signature__ = inspect.Signature([first, *_options(listing), *others])  # type: ignore[attr-defined]
    return command


def _options(listing: Listing) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a listing's filters."""
    for _, each in listing.filters:
        option = typer.Option(
            each.flag, help=each.help, metavar="NUMBERS" if each.takes == "numbers" else None
        )
        type_: Any = bool | None if each.takes in ("switch", "choice") else str | None
        annotation = Annotated[type_, option]
        yield inspect.Parameter(
            each.argument, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )


def _list(
    view: str,
    *,
    from_: FromOption = None,
    run: RunOption = None,
    where: WhereOption = None,
    sort: SortOption = None,
    limit: LimitOption = None,
    columns: ColumnsOption = None,
    wide: WideOption = False,
    format_: FormatOption = "table",
    output: OutputOption = None,
    **given: Any,
) -> None:
    """Show the rows of a view that the options describe."""
    chosen = _format(format_, output)
    is_table = chosen == "table"
    names = (
        ",".join((columns, *_OF_OPENED.get(LISTINGS[view].opened_by, ())))
        if columns and is_table
        else columns
    )
    with as_table(from_) as (store, location):
        selected = Selected(store, view, given, run, where, sort, names)
        most = _PAGE if limit is None and is_table else limit
        with ended_by_ctrl_c(store.location.uri == location and chosen != "parquet"):
            engine = selected.engine
            # One row more than a table shows, to know whether there are more.
            checked = selected.checked(most + is_table if most else None)
            if not is_table:
                _write(engine, checked, chosen, None, output)
                return
            rows, notes = _page(engine, checked, limit)
            listing = selected.listing
            if not rows.num_rows:
                notes = [selected.nothing()]
            known = _runs_in(engine)
            found = dicts_of(rows)
            if found and listing.opened_by:
                of_first = Run(*map(found[0].get, Run._fields))
                run = reference_of(of_first, known) if len(known) > 1 else None
                name = found[0]["path"]
                if trace := found[0].get("trace_id"):
                    name = paths_of(engine, of_first, [trace]).get(trace, trace)
                opening = command(listing.opened_by, [name], source_options(from_, run))
                notes.append(f"open the first: {opening}")
            shown = _shown(listing, rows.column_names, _parts(columns), _columns_of(known), selected.asked)
            print_table(found, shown, [*notes, f"from {location}"], wide)


class Selected:
    """The rows of a view that a command's options describe.

    Args:
        store: the table.
        view: the view.
        given: the options that filter by its columns.
        run: the run; None for all.
        where: a further condition.
        sort: columns to sort by.
        columns: columns to show.

    Attributes:
        engine: queries the table.
        listing: how the view is listed.
        asked: names of filtered columns, and the texts of ``--where`` and ``--sort``, joined by spaces.
    """

    def __init__(
        self,
        store: Store,
        view: str,
        given: Mapping[str, Any],
        run: str | None,
        where: str | None,
        sort: str | None,
        columns: str | None,
    ) -> None:
        self.listing, self._where, self._given = LISTINGS[view], where, given
        by_column = self.listing.conditions(given)
        self.asked = " ".join([*by_column, *filter(None, (where, sort))])
        named = [self.asked, *by_column.values(), columns or ""]
        self._source = figures.trajectories_with(named) if view == "trajectories" else view
        self.engine = Engine(store.open())
        self._of_run = run_of(self.engine, run).condition if run is not None else "true"
        conditions = [self._of_run, *by_column.values(), *([] if where is None else [filters.where(where)])]
        known = self.engine.columns_of(self._source)
        order = ", ".join([*(filters.order(name, known) for name in _parts(sort)), self.listing.order])
        names = ", ".join(dict.fromkeys(filters.known(name, known) for name in _parts(columns))) or "*"
        self._sql = f"SELECT {names} FROM {self._source}{filters.all_of(conditions)} ORDER BY {order}"  # noqa: S608

    def checked(self, limit: int | None = None) -> str:
        """Check the query, and return it; an error in ``--where`` names the place in the option's text."""
        try:
            return self.engine.check(f"{self._sql} LIMIT {limit}" if limit else self._sql)
        except QueryError:
            if self._where is not None:
                self.engine.check_condition(self._where, self._source)
            raise

    def nothing(self) -> str:
        """Return why no row matches."""
        return self.listing.nothing(self.engine, self._source, self._of_run, self._given)


def _parts(text: str | None) -> list[str]:
    """Split the comma-separated names of an option."""
    return [name.strip() for name in text.split(",")] if text else []


list_, groups, steps = (reading(command_of(view)) for view in ("trajectories", "groups", "steps"))


@reading
def query(
    sql: Annotated[str, typer.Argument(help="One SELECT on the views.", metavar="SELECT")],
    from_: FromOption = None,
    limit: LimitOption = None,
    wide: WideOption = False,
    format_: FormatOption = "table",
    output: OutputOption = None,
) -> None:
    """Run one SELECT on views such as trajectories, turns, tool_calls, scores, groups, steps and runs."""
    chosen = _format(format_, output)
    with as_table(from_) as (store, location):
        engine = Engine(store.open())
        with ended_by_ctrl_c(store.location.uri == location and chosen != "parquet"):
            checked = engine.check(sql)
            if chosen != "table":
                _write(engine, checked, chosen, limit, output)
                return
            rows, notes = _page(engine, checked, limit)
            notes += [] if rows.num_rows else ["no rows"]
            print_table(dicts_of(rows), of_query(rows.column_names), [*notes, f"from {location}"], wide)


def _write(engine: Engine, checked: str, format_: Format, limit: int | None, output: Path | None) -> None:
    """Write the rows of a checked query as a file, or to standard output."""
    with writing("output"):
        if format_ == "parquet":
            write_parquet(lambda path: engine.write_parquet(checked, path, limit), output)
        else:
            write(engine.run(checked, limit), format_, output)


def _page(engine: Engine, checked: str, limit: int | None) -> tuple[Table, list[str]]:
    """Return the rows of a checked query that a table shows, and a note if there are more."""
    most = _PAGE if limit is None else limit
    found = engine.run(checked, most + 1 if most else None)
    if not most or found.num_rows <= most:
        return found, []
    return found.slice(0, most), [f"the first {most}; --limit 0 shows all"]


def _shown(
    listing: Listing, present: Sequence[str], wanted: Sequence[str], runs: Sequence[str], asked: str
) -> list[ListedColumn]:
    """Return the columns of a table: the wanted ones, else the listing's.

    On a narrow terminal, the listing's columns that the options ask about stay longest.
    """
    forms = {column.name: column.form for column in listing.columns}
    if wanted:
        return [ListedColumn(name, forms.get(name, ""), place) for place, name in enumerate(wanted)]
    words = set(re.findall(r"\w+", asked))
    return [
        *(ListedColumn(name, "name", 0) for name in runs),
        *(
            column._replace(rank=min(column.rank, 1)) if column.name in words else column
            for column in listing.columns
            if column.rank is not None and column.name in present
        ),
    ]


def _runs_in(engine: Engine) -> list[Run]:
    """Return the runs that have spans of trajectories, without a search for root spans."""
    sql = f"SELECT DISTINCT {', '.join(Run._fields)} FROM {views.RECORDED} WHERE validate IS NOT NULL"  # noqa: S608
    return [Run(**row) for row in engine.dicts(f"{sql} AND score_name IS NULL")]


def _columns_of(runs: Sequence[Run]) -> list[str]:
    """Return the columns that tell runs apart; empty for one run."""
    values = {name: {getattr(run, name) for run in runs} for name in Run._fields}
    if len(values["run_id"]) == len(runs) > 1:
        return ["run_id"]
    return [name for name, of_runs in values.items() if len(of_runs) > 1]


@contextmanager
def ended_by_ctrl_c(is_wanted: bool) -> Iterator[None]:
    """Let Ctrl-C end the process at once; Python's handler would wait until the query has ended.

    Args:
        is_wanted: False if Python must remove a private directory at the end, of a spool or a Parquet file.
    """
    usual = signal.getsignal(signal.SIGINT)
    if not is_wanted or usual is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _format(text: str, output: Path | None) -> Format:
    """Return the format that ``--format`` names."""
    found: Format | None = next((name for name in FORMATS if name == text), None)
    if found is None:
        raise QueryError(unknown("format", text, FORMATS))
    if found == "table" and output is not None:
        raise QueryError("A table is printed; to write a file, add --format csv, json or parquet.")
    return found
