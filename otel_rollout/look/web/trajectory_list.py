"""Show the trajectories of a run that a form's fields describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from otel_rollout.look.analysis.run_choice import Run
from otel_rollout.look.conversation import formatting
from otel_rollout.look.pages.rendering import render
from otel_rollout.look.web.links import ServedLinks, run_parameters
from otel_rollout.look.web.snapshot import Snapshot
from otel_rollout.otlp import evaluations
from otel_rollout.table import figures, filters, training
from otel_rollout.table.select import QueryError

NUMBERS: Final = {
    "step": "3 or 1-9", "reward": "<0.1", "turns": ">5", "seconds": ">60", "lag": ">2", "mismatch": ">0.1",
}  # fmt: skip
"""Fields that hold numbers, and examples."""
FLAGS: Final = {
    "failed": "failed",
    "running": "running",
    "tool_error": "with a failed tool call",
    "filtered": "not trained on",
    "broken_prefix": "with a turn whose tokens are not the next prompt's beginning",
}
KINDS: Final = {"": "training and validation", "training": "training", "validation": "validation"}
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
"""Field of the number of a page of the list."""
PAGE_ROWS: Final = 100
MAX_PAGES: Final = 100_000
MAX_TEXT: Final = 100
"""Maximum characters of a field: a thousand alternatives would exhaust the engine's stack."""
_ORDER: Final = (
    "validate, step NULLS LAST, TRY_CAST(sample_index AS BIGINT) NULLS LAST, sample_index, rollout_n, "
    "trace_id"
)
_COLUMNS: Final = (
    "trace_id, path, state, reward, reward_label, turns, tool_calls, tool_errors, tokens_out, seconds, "
    "start_time, error_type"
)


class Filters:
    """The fields of the form, as a request has them.

    Args:
        given: field → text; unknown fields are ignored.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        known = (*NUMBERS, *FLAGS, "kind", "sort", PAGE)
        self.given = {name: given[name] for name in known if given.get(name)}

    def text(self, field: str) -> str:
        """Return a field's text; empty without one."""
        return self.given.get(field, "")

    def is_set(self, field: str) -> bool:
        """Return whether a checkbox is set."""
        return self.text(field) == "true"

    @property
    def page(self) -> int:
        """Number of the page of the list; the first is 1."""
        text = self.text(PAGE)
        return min(max(int(text), 1), MAX_PAGES) if text.isdecimal() and len(text) < 9 else 1

    def conditions(self) -> list[str]:
        """Return the conditions as SQL.

        Raises:
            QueryError: a field cannot be read.
        """
        found = [
            filters.numbers(name, self._short(name), name) for name in NUMBERS if self.text(name).strip()
        ]
        states = [state for state, flag in (("error", "failed"), ("running", "running")) if self.is_set(flag)]
        found += [filters.equals("state", states)] if states else []
        found += ["tool_errors > 0"] if self.is_set("tool_error") else []
        found += [training.FILTERED] if self.is_set("filtered") else []
        found += ["broken_turns > 0"] if self.is_set("broken_prefix") else []
        kind = self._one_of("kind", KINDS)
        return found + ([filters.equals("validate", kind == "validation")] if kind else [])

    def order(self) -> str:
        """Return the order of the rows as SQL.

        Raises:
            QueryError: the list cannot be sorted like that.
        """
        sort = self._one_of("sort", SORTS)
        columns = [name.removeprefix("-") for name in SORTS]
        return f"{filters.order(sort, columns)}, {_ORDER}" if sort else _ORDER

    def _short(self, field: str) -> str:
        text = self.text(field).strip()
        if len(text) > MAX_TEXT:
            raise QueryError(f"{field} has more than {MAX_TEXT} characters.")
        return text

    def _one_of(self, field: str, known: Mapping[str, str]) -> str:
        text = self.text(field)
        if text not in known:
            raise QueryError(
                f"{field} is {text[:MAX_TEXT]!r}; expected one of {', '.join(filter(None, known))}."
            )
        return text


def page_of_trajectories(snapshot: Snapshot, run: Run, given: Filters, links: ServedLinks) -> str:
    """Return the page of a run's trajectories; a form that cannot be read is a sentence on it."""
    problem, count = "", 0
    rows: list[dict[str, Any]] = []
    try:
        conditions = filters.all_of([run.condition, *given.conditions()])
        order = given.order()
    except QueryError as error:
        problem = str(error)
    else:
        rows, count = _rows(snapshot, conditions, order, given.page)
    is_last = given.page * PAGE_ROWS >= count
    return render(
        "trajectories.html",
        links,
        name=run.name,
        run_parameters=run_parameters(run),
        numbers=NUMBERS,
        flags=FLAGS,
        kinds=KINDS,
        sorts=SORTS,
        longest=MAX_TEXT,
        given=given,
        problem=problem,
        summary=_summary(rows, count, given.page),
        rows=[_shown(row) for row in rows],
        earlier=_beside(links, given, -1) if given.page > 1 else None,
        later=None if is_last else _beside(links, given, 1),
    )


def _rows(snapshot: Snapshot, conditions: str, order: str, page: int) -> tuple[list[dict[str, Any]], int]:
    """Return a page of rows, and the number of all rows."""
    source = figures.trajectories_with([conditions])
    count = snapshot.rows(f"SELECT count(*) AS number FROM {source}{conditions}")[0]["number"]  # noqa: S608
    rows = snapshot.rows(
        f"SELECT {_COLUMNS} FROM {source}{conditions} ORDER BY {order} "  # noqa: S608
        f"LIMIT {PAGE_ROWS} OFFSET {(page - 1) * PAGE_ROWS}"
    )
    return rows, count


def _beside(links: ServedLinks, given: Filters, pages: int) -> str:
    """Return the address of a page of the list before or after this one."""
    return links.trajectories({**given.given, PAGE: str(given.page + pages)})


def _summary(rows: list[dict[str, Any]], count: int, page: int) -> str:
    if not rows:
        return "No trajectory is like that." if not count else f"There are only {count}."
    first = (page - 1) * PAGE_ROWS + 1
    return f"{first} to {first + len(rows) - 1} of {count}"


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    reward = evaluations.value_of(row["reward"], row["reward_label"])
    texts = {name: "" if value is None else value for name, value in row.items()}
    return {
        **texts,
        "reward": "" if reward is None else formatting.score_value(reward),
        "took": formatting.duration(row["seconds"]),
        "began": f"{row['start_time']:%Y-%m-%d %H:%M:%S}" if row["start_time"] else "",
    }
