"""Make the page that lists a run's trajectories, filtered by a form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from otel_rollout.look.analysis.run_choice import Run, kept, tools_of
from otel_rollout.look.conversation import formatting
from otel_rollout.look.listings import LISTINGS, Filter, ListedColumn, cell
from otel_rollout.look.pages.rendering import render
from otel_rollout.look.web.links import ServedLinks, run_parameters
from otel_rollout.look.web.snapshot import Snapshot
from otel_rollout.otlp import evaluations
from otel_rollout.table import figures, filters
from otel_rollout.table.select import QueryError, literal

SORTS: Final = {
    "": "name",
    "reward": "lowest reward",
    "-reward": "highest reward",
    "-seconds": "longest time",
    "-turns": "most turns",
    "-tool_errors": "most tool errors",
    "-tokens_out": "most tokens out",
    "-start_time": "newest",
}
"""Column, with a minus for descending → its words."""
PAGE: Final = "page"
"""Name of the field with the number of the list's page."""
PAGE_ROWS: Final = 100
MAX_PAGES: Final = 100_000
MAX_TEXT: Final = 100
"""Maximum characters of a field: a thousand alternatives would exhaust the engine's stack."""
_LISTING: Final = LISTINGS["trajectories"]
_TRUTH: Final = {"true": True, "false": False}
_BESIDE: Final = ("trace_id", "path", "state", "reward", "reward_label")
"""Columns that the page shows in another way, or not at all."""


class Filters:
    """The fields of the form, as a request has them.

    Args:
        given: field → text; unknown fields are ignored.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        known = (*(each.argument for _, each in _LISTING.filters), "sort", PAGE)
        self.given = {name: given[name] for name in known if given.get(name)}

    def text(self, field: str) -> str:
        """Return a field's text; empty without one."""
        return self.given.get(field, "")

    @property
    def page(self) -> int:
        """Number of the page of the list; the first is 1."""
        text = self.text(PAGE)
        return min(max(int(text), 1), MAX_PAGES) if text.isdecimal() and len(text) < 9 else 1

    def values(self) -> dict[str, bool | str | None]:
        """Return the value of each field; None for an empty one.

        Raises:
            QueryError: a field's text is invalid.
        """
        return {each.argument: self._value(each) for _, each in _LISTING.filters}

    def order(self) -> str:
        """Return the order of the rows as SQL.

        Raises:
            QueryError: the list cannot be sorted like that.
        """
        sort = self.text("sort")
        columns = [name.removeprefix("-") for name in SORTS]
        return f"{filters.order(sort, columns)}, {_LISTING.order}" if sort else _LISTING.order

    def _value(self, field: Filter) -> bool | str | None:
        text = self.text(field.argument)
        if len(text) > MAX_TEXT:
            raise QueryError(f"{field.argument} has more than {MAX_TEXT} characters.")
        if text and field.takes in ("switch", "choice"):
            if text not in _TRUTH:
                raise QueryError(f"{field.argument} is {text!r}; expected {' or '.join(_TRUTH)}.")
            return _TRUTH[text]
        return text or None


def page_of_trajectories(snapshot: Snapshot, run: Run, given: Filters, links: ServedLinks) -> str:
    """Return the page of a run's trajectories; for an invalid field, the page says what is wrong."""
    problem, nothing, count = "", "", 0
    rows: list[dict[str, Any]] = []
    further = tuple(_further(snapshot, run))
    try:
        values = given.values()
        conditions = filters.all_of([run.condition, *_LISTING.conditions(values).values()])
        order = given.order()
    except QueryError as error:
        problem = str(error).removeprefix("--")  # a field has the name of its option
    else:
        source = figures.trajectories_with([conditions, order])
        rows, count = _rows(snapshot, source, conditions, order, given.page, further)
        if not count:
            nothing = _LISTING.nothing(snapshot.engine, source, run.condition, values)
    is_last = given.page * PAGE_ROWS >= count
    return render(
        "trajectories.html",
        links,
        name=run.name,
        run_parameters=run_parameters(run),
        fields=list(_fields(further, given)),
        tools=tools_of(snapshot.engine, run.condition),
        sorts=SORTS,
        longest=MAX_TEXT,
        given=given,
        problem=problem,
        count=count,
        nothing=nothing,
        first=(given.page - 1) * PAGE_ROWS + 1,
        columns=list(_columns(rows)),
        rows=[_shown(row) for row in rows],
        cell=cell,
        earlier=_beside(links, given, -1) if given.page > 1 else None,
        later=None if is_last else _beside(links, given, 1),
    )


def _further(snapshot: Snapshot, run: Run) -> Iterator[str]:
    """Yield the columns of a trainer, of broken prefixes and of an engine, if the run fills them."""
    marks = {
        "training": f"training WHERE {run.condition} AND has_outcome",
        "first_breaks": f"trajectories WHERE {run.condition} AND broken_turns > 0",
        "engine_time": "recorded_spans WHERE name = 'llm_request'",
    }
    filled = " UNION ALL ".join(
        f"SELECT '{view}' AS filled FROM (SELECT trace_id FROM {mark} LIMIT 1) AS marked"  # noqa: S608
        for view, mark in marks.items()
    )
    for row in snapshot.rows(f"SELECT filled FROM {kept(snapshot.engine, 'filled', run.condition, filled)}"):  # noqa: S608
        yield from figures.shown_with(row["filled"])


def _fields(further: Sequence[str], given: Filters) -> Iterator[Filter]:
    """Yield the form's fields: those of columns that the run fills, and those that a person has filled in."""
    seldom = {column for view in figures.COLUMNS for column in figures.shown_with(view)}.difference(further)
    for column, each in _LISTING.filters:
        if column not in seldom or given.text(each.argument):
            yield each


def _rows(
    snapshot: Snapshot, source: str, conditions: str, order: str, page: int, further: Sequence[str]
) -> tuple[list[dict[str, Any]], int]:
    """Return a page of rows, and the number of all rows."""
    source += conditions
    found = snapshot.rows(
        f"SELECT trace_id, count(*) OVER () AS number FROM {source} ORDER BY {order} "  # noqa: S608
        f"LIMIT {PAGE_ROWS} OFFSET {(page - 1) * PAGE_ROWS}"
    )
    if not found:
        return [], snapshot.engine.count(source)
    whole = figures.trajectories_with([conditions, order, *further])  # for this page only: each view costs
    named = ", ".join(literal(row["trace_id"]) for row in found)
    rows = snapshot.rows(f"SELECT * FROM {whole} WHERE trace_id IN ({named}) ORDER BY {order}")  # noqa: S608
    return rows, found[0]["number"]


def _columns(rows: Sequence[Mapping[str, Any]]) -> Iterator[ListedColumn]:
    """Yield the columns of the page's table, of the listing and the start, that have a value in some row."""
    for column in (*_LISTING.columns, ListedColumn("start_time", "", 9)):
        is_listed = column.rank is not None and column.name not in _BESIDE
        if is_listed and any(cell(column.form, row.get(column.name)) for row in rows):
            yield column


def _beside(links: ServedLinks, given: Filters, pages: int) -> str | None:
    """Return the address of the list's page that is ``pages`` after this one; before it if negative."""
    return links.trajectories({**given.given, PAGE: str(given.page + pages)})


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    reward = evaluations.value_of(row["reward"], row["reward_label"])
    return {**row, "reward": "" if reward is None else formatting.score_value(reward)}
