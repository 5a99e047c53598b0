"""Define the columns of `list`, `groups` and `steps`, and their filters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from otel_rollout.base.printable import in_one_line
from otel_rollout.base.suggest import unknown
from otel_rollout.look.analysis.run_choice import tools_of
from otel_rollout.look.conversation.formatting import score_value, steps_in_words
from otel_rollout.look.conversation.trajectories import IN_ORDER, ORDER_OF_GROUPS, ORDER_OF_STEPS
from otel_rollout.table import figures, filters, training
from otel_rollout.table.query import Engine
from otel_rollout.table.select import literal

Form = Literal["", "name", "id", "number", "seconds", "mark"]
"""How values are printed.

- empty: as they are.
- ``name``: whole, so that a person can paste them.
- ``id``: the first digits.
- ``number``: with few digits.
- ``seconds``: as durations.
- ``mark``: only if they are true, or not 0.
"""
_NAMES: Final = ("path", "group_path", "trace_id", "span_id", "run_id")
"""Columns of a query whose values a person may paste."""
_MAX_CELL: Final = 200
"""Maximum characters of a value in a table."""
_DIGITS_OF_ID: Final = 8
"""Digits of a trace id in a table, which `show` takes."""


_ANY_OUTCOME: Final = "SELECT trace_id FROM training WHERE has_outcome LIMIT 1"


class Filter(NamedTuple):
    """An option of a command, or a field of a page, that filters by a column.

    Attributes:
        flag: the option; ``--yes/--no`` has two sides.
        help: help text; the words before a colon are also the label of the page's field.
        condition: SQL condition of a switch, or with ``{}`` for a name; empty if the option takes numbers or
            steps.
    """

    flag: str
    help: str
    condition: str = ""

    @property
    def argument(self) -> str:
        """Name of the command's argument, and of the page's field."""
        return self.flag.partition("/")[0].removeprefix("--").replace("-", "_")

    @property
    def label(self) -> str:
        """The words of the page's field."""
        words = self.help.partition(":")[0].rstrip(".")
        return words[:1].lower() + words[1:]

    @property
    def takes(self) -> Literal["switch", "choice", "name", "numbers"]:
        """What the option takes: nothing, one of two sides, a name, or numbers."""
        if "/" in self.flag:
            return "choice"
        return "name" if "{}" in self.condition else "switch" if self.condition else "numbers"

    def sql(self, column: str, value: Any) -> str:
        """Return the SQL condition for the option's value: a bool, a name, or numbers.

        Raises:
            QueryError: the numbers cannot be read.
        """
        if column == "step":
            return filters.steps(value, self.flag)
        if self.takes == "numbers":
            return filters.numbers(column, value, self.flag)
        if self.takes == "name":
            return self.condition.replace("{}", literal(value))
        return self.condition if value else f"NOT {self.condition}"


class ListedColumn(NamedTuple):
    """A column of a listing.

    Attributes:
        name: its name in the view, which is its heading on the terminal.
        form: how its values are printed.
        rank: without room, columns with the highest ranks are left out first; None if it is never shown.
        filters: the options that filter by it.
    """

    name: str
    form: Form = ""
    rank: int | None = None
    filters: tuple[Filter, ...] = ()

    @property
    def heading(self) -> str:
        """Its heading on a page."""
        return self.name.replace("_", " ").replace("seconds", "duration")


class Listing(NamedTuple):
    """What a command lists.

    Attributes:
        help: what the command does.
        noun: what a row is, for a person.
        columns: the columns of its view, and columns of views that are joined if a column of them is named.
        order: the order of its rows, in SQL.
        opened_by: the command that takes the path of a row; empty without one.
    """

    help: str
    noun: str
    columns: tuple[ListedColumn, ...]
    order: str
    opened_by: str = ""

    @property
    def filters(self) -> Iterator[tuple[str, Filter]]:
        """Pairs of a column's name and one of its filters."""
        for column in self.columns:
            for each in column.filters:
                yield column.name, each

    def conditions(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Return column → condition of its filters; of several switches, such as two states, one must hold.

        Raises:
            QueryError: a filter's numbers cannot be read.
        """
        found: dict[str, str] = {}
        for column, each in self.filters:
            if given[each.argument] is not None:
                joint = " OR " if each.takes == "switch" else " AND "
                sql = each.sql(column, given[each.argument])
                found[column] = f"({found[column]}{joint}{sql})" if column in found else sql
        return found

    def nothing(self, engine: Engine, source: str, of_run: str, given: Mapping[str, Any]) -> str:
        """Return why no row matches filters: what exists instead, or what the source does not tell.

        Args:
            engine: queries the table.
            source: the view that was searched.
            of_run: condition that a row is of the searched runs.
            given: argument of each filter → its value.
        """
        by_column = self.conditions(given)
        conditions = [by_column.get("step", "true"), by_column.get("validate", "true")]
        rows = engine.dicts(
            f"SELECT DISTINCT step, step_text, coalesce({' AND '.join(conditions)}, false) AS is_wanted "  # noqa: S608
            f"FROM {source} WHERE {of_run} ORDER BY step"
        )
        if rows and not any(row["is_wanted"] for row in rows):
            said = steps_in_words(map(filters.step_in, rows))
            return f"no {self.noun}: there {'are' if said.startswith('steps') else 'is'} {said}"
        for name in filter(None, map(given.get, ("tool", "failed_tool"))):
            if name not in (known := tools_of(engine, of_run)):
                return unknown("tool", name, known)
        if "tool_errors" in by_column:
            failed = given.get("failed_tool")
            calls = f"called_tools WHERE {of_run}" + (f" AND tool_name = {literal(failed)}" if failed else "")
            if engine.count(calls) and not engine.count(f"{calls} AND known > 0"):
                return f"no {self.noun}: the source does not tell how its tool calls ended"
        is_known = "FROM training" not in source or engine.dicts(_ANY_OUTCOME)
        unsaid = "" if is_known else "; no score says what training made of a trajectory (docs/training.md)"
        return f"no {self.noun} is like that{unsaid}"


def of_query(names: Sequence[str]) -> list[ListedColumn]:
    """Return the columns of a query, with forms by their names; without room, the last are left out first."""
    return [
        ListedColumn(
            name, "name" if name in _NAMES else "seconds" if "seconds" in name.split("_") else "", place
        )
        for place, name in enumerate(names)
    ]


def cell(form: Form, value: Any) -> str:
    """Return a value as a cell of a table."""
    if value is None or (form == "mark" and not value):
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and form in ("seconds", "number"):
        from otel_rollout.look.analysis.report import text as report_text

        return report_text.seconds(value) if form == "seconds" else report_text.number(value)
    if isinstance(value, (bool, float)):
        return score_value(value)
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    text = in_one_line(value.hex() if isinstance(value, bytes) else str(value))
    if form == "id":
        return text[:_DIGITS_OF_ID]
    return text if len(text) <= _MAX_CELL else text[:_MAX_CELL] + "…"


STEPS: Final = "Steps: 12, 1-3, warm-up; - for none."
"""What ``--step`` takes, wherever it takes several steps."""
_STEP: Final = ListedColumn("step", "", None, (Filter("--step", STEPS),))
_SAMPLE: Final = ListedColumn(
    "sample_index",
    "name",
    None,
    (Filter("--sample", "Dataset row; - for none.", "coalesce(sample_index, '-') = {}"),),
)
_VALIDATE: Final = (Filter("--validation/--training", "Of validation, or of training.", "validate"),)
_REWARD: Final = (Filter("--reward", "Mean reward."),)
_NO_SPREAD: Final = Filter(
    "--no-spread", "Without spread: all rewards are equal, so it teaches nothing.", "reward_spread = 0"
)
_STATE: Final = (
    Filter("--failed", "Failed: it raised an error.", "state = 'error'"),
    Filter("--running", "Running: it has not ended yet.", "state = 'running'"),
    Filter("--ok", "Ok: it ended without an error.", "state = 'ok'"),
)
_CALLED: Final = "trace_id IN (SELECT trace_id FROM called_tools WHERE tool_name = {}"
_TOOL: Final = Filter("--tool", "Tool: it called this one.", f"{_CALLED})")
_FAILED_TOOL: Final = Filter(
    "--failed-tool", "Failed tool: it has an error of this one.", f"{_CALLED} AND error IS NOT NULL)"
)
_TOOL_ERROR: Final = Filter("--tool-error", "With a tool error: of any tool.", "tool_errors > 0")
_FILTERED: Final = Filter("--filtered", "Not trained on: the loss left them out.", training.FILTERED)
_MISMATCH: Final = "Mismatch: largest difference of the sampler's and the trainer's log probability."
_QUEUE: Final = (Filter("--queue", "Seconds in queue: of an inference engine."),)
_BROKEN: Final = "With a turn whose tokens are not the next prompt's beginning."
_TRAJECTORIES: Final = (
    _STEP,
    _SAMPLE,
    ListedColumn("path", "name", 0),
    ListedColumn("trace_id", "id", 8),
    ListedColumn("reward", "number", 1, (Filter("--reward", "Reward."),)),
    ListedColumn("reward_label", "", 1),
    ListedColumn("state", "", 1, _STATE),
    ListedColumn("seconds", "seconds", 4, (Filter("--seconds", "Duration."),)),
    ListedColumn("turns", "number", 3, (Filter("--turns", "Turns: model calls."),)),
    ListedColumn("tool_calls", "number", 5, (_TOOL,)),
    ListedColumn("tool_errors", "number", 3, (_TOOL_ERROR, _FAILED_TOOL)),
    ListedColumn("tokens_in", "number", 7),
    ListedColumn("tokens_out", "number", 6),
    ListedColumn("error_type", "", 4),
    ListedColumn("trained", "", 2),
    ListedColumn("reason", "", 2, (_FILTERED,)),
    ListedColumn("advantage", "number", 2),
    ListedColumn("lag", "number", 2, (Filter("--lag", "Policy lag: in versions."),)),
    ListedColumn("mismatch", "number", 2, (Filter("--mismatch", _MISMATCH),)),
    ListedColumn("mismatch_turn", "number", 2),
    ListedColumn("requests", "number", 2),
    ListedColumn("calls_without_request", "number", 3),
    ListedColumn("queue_seconds", "seconds", 2, _QUEUE),
    *(ListedColumn(name, "seconds", 2) for name in figures.COLUMNS["engine_time"][3:]),
    ListedColumn("broken_turns", "mark", 2, (Filter("--broken-prefix", _BROKEN, "broken_turns > 0"),)),
    *(ListedColumn(name, "", 2) for name in figures.COLUMNS["first_breaks"]),
    ListedColumn("validate", "", None, _VALIDATE),
)  # fmt: skip
_OF_SEVERAL: Final = (
    ListedColumn("trajectories", "number", 2),
    ListedColumn("failed", "number", 1),
    ListedColumn("running", "mark", 5),
    ListedColumn("rewarded", "number", 7),
    ListedColumn("reward_mean", "number", 1, _REWARD),
    ListedColumn("reward_min", "number", 4),
    ListedColumn("reward_max", "number", 4),
)
_SUMS: Final = (
    ListedColumn("tool_calls", "number", 3),
    ListedColumn("tool_errors", "number", 1),
    ListedColumn("tokens_out", "number", 6),
)
LISTINGS: Final = {
    "trajectories": Listing(
        "List trajectories: filter, sort, and write them as CSV, JSON or Parquet.",
        "trajectory",
        _TRAJECTORIES,
        IN_ORDER,
        "show",
    ),
    "groups": Listing(
        "List groups with the mean, least and greatest reward and its spread.",
        "group",
        (
            _STEP,
            _SAMPLE,
            ListedColumn("path", "name", 0),
            *_OF_SEVERAL,
            ListedColumn("reward_spread", "number", 1, (_NO_SPREAD,)),
            *_SUMS,
            ListedColumn("validate", "", None, _VALIDATE),
        ),
        ORDER_OF_GROUPS.replace("group_path", "path"),
        "group",
    ),
    "steps": Listing(
        "List steps with mean reward, failures, tool calls and tokens.",
        "step",
        (
            ListedColumn("validate", "mark", 1, _VALIDATE),
            _STEP._replace(rank=0),
            ListedColumn("step_text", "name", 1),
            ListedColumn("groups", "number", 4),
            *_OF_SEVERAL,
            ListedColumn("reward_std", "number", 5),
            ListedColumn("turns_mean", "number", 3),
            *_SUMS,
            ListedColumn("seconds_mean", "seconds", 2),
        ),
        ORDER_OF_STEPS,
    ),
}
"""View → what its command lists."""
