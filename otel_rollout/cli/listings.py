"""Name the columns of `list`, `groups` and `steps`, and the options that filter by them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import typer

from otel_rollout.table import figures, filters, training

Form = Literal["", "name", "id", "number", "seconds", "mark"]
"""How values are printed: as they are, whole, their first digits, with few digits, as durations, if true."""
_NAMES: Final = ("path", "group_path", "trace_id", "span_id", "run_id")
"""Columns of a query that a person pastes."""


class Filter(NamedTuple):
    """An option that filters by a column.

    Attributes:
        flag: the option; ``--yes/--no`` has two sides.
        help: what it means.
        condition: SQL of a switch; an option without one takes numbers, or a name.
    """

    flag: str
    help: str
    condition: str = ""

    @property
    def argument(self) -> str:
        """Name of the command's argument."""
        return self.flag.partition("/")[0].removeprefix("--").replace("-", "_")


class ListedColumn(NamedTuple):
    """A column of a listing.

    Attributes:
        name: its name in the view, which is its heading.
        form: how its values are printed.
        rank: columns of a low rank are the last to go where the terminal has no room; None: never shown.
        filters: the options that filter by it.
    """

    name: str
    form: Form = ""
    rank: int | None = None
    filters: tuple[Filter, ...] = ()


class Listing(NamedTuple):
    """What a command lists.

    Attributes:
        help: what the command does.
        noun: what a row is, for a person.
        columns: the columns of its view, and of the views that are joined to it if one is named.
        order: the order of its rows, in SQL.
    """

    help: str
    noun: str
    columns: tuple[ListedColumn, ...]
    order: str

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Yield the options of the columns."""
        for column in self.columns:
            for each in column.filters:
                metavar = None if each.condition or column.form == "name" else "NUMBERS"
                option = typer.Option(each.flag, help=each.help, metavar=metavar)
                type_: Any = bool | None if each.condition else str | None
                kind = inspect.Parameter.KEYWORD_ONLY
                yield inspect.Parameter(
                    each.argument, kind, default=None, annotation=Annotated[type_, option]
                )

    def conditions(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Return column → condition of its options; of several, one must hold.

        Raises:
            QueryError: an option's numbers cannot be read.
        """
        found: dict[str, list[str]] = {}
        for column in self.columns:
            for each in column.filters:
                if given[each.argument] is not None:
                    condition = _condition(column, each, given[each.argument])
                    found.setdefault(column.name, []).append(condition)
        return {name: filters.any_of(conditions) for name, conditions in found.items()}


def _condition(column: ListedColumn, filter_: Filter, value: Any) -> str:
    if filter_.condition:
        return filter_.condition if value else f"NOT {filter_.condition}"
    if column.form == "name":
        return filters.equals(column.name, value)
    return filters.numbers(column.name, value, filter_.flag)


def of_query(names: Sequence[str]) -> list[ListedColumn]:
    """Return the columns of a query, whose names tell their forms; the last are the first to go."""
    return [
        ListedColumn(
            name, "name" if name in _NAMES else "seconds" if "seconds" in name.split("_") else "", place
        )
        for place, name in enumerate(names)
    ]


_ORDER_OF_STEPS: Final = "validate, run_id, project, experiment, step"
_ORDER_OF_GROUPS: Final = f"{_ORDER_OF_STEPS}, TRY_CAST(sample_index AS BIGINT), sample_index, group_path"
_STEP: Final = (Filter("--step", "Steps."),)
_SAMPLE: Final = ListedColumn("sample_index", "name", None, (Filter("--sample", "One dataset row."),))
_VALIDATE: Final = (
    Filter("--validation/--training", "Only of validation, or only of training.", "validate"),
)
_REWARD: Final = (Filter("--reward", "Mean reward."),)
_FAILED: Final = Filter("--failed", "That raised: ended with an error.", "state = 'error'")
_RUNNING: Final = Filter("--running", "Not ended yet.", "state = 'running'")
_TOOL_ERROR: Final = Filter("--tool-error", "With a tool error.", "tool_errors > 0")
_FILTERED: Final = Filter("--filtered", "Not trained on: the loss left them out.", training.FILTERED)
_MISMATCH: Final = "Largest difference of the sampler's and the trainer's log probability."
_QUEUE: Final = (Filter("--queue", "Seconds in an inference engine's queue."),)
_BROKEN: Final = "With a turn whose tokens are not the next prompt's beginning."
_TRAJECTORIES: Final = (
    ListedColumn("step", "", None, _STEP),
    _SAMPLE,
    ListedColumn("path", "name", 0),
    ListedColumn("trace_id", "id", 8),
    ListedColumn("reward", "number", 1, (Filter("--reward", "Reward."),)),
    ListedColumn("state", "", 1, (_FAILED, _RUNNING)),
    ListedColumn("seconds", "seconds", 4, (Filter("--seconds", "Duration."),)),
    ListedColumn("turns", "number", 3, (Filter("--turns", "Model calls."),)),
    ListedColumn("tool_calls", "number", 5),
    ListedColumn("tool_errors", "number", 3, (_TOOL_ERROR,)),
    ListedColumn("tokens_in", "number", 7),
    ListedColumn("tokens_out", "number", 6),
    ListedColumn("error_type", "", 4),
    ListedColumn("trained", "", 2),
    ListedColumn("reason", "", 2, (_FILTERED,)),
    ListedColumn("advantage", "number", 2),
    ListedColumn("lag", "number", 2, (Filter("--lag", "Policy lag, in versions."),)),
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
        f"{_ORDER_OF_GROUPS}, rollout_n, path, start_time, trace_id",
    ),
    "groups": Listing(
        "List groups with the mean, least and greatest reward and its spread.",
        "group",
        (
            ListedColumn("step", "", None, _STEP),
            _SAMPLE,
            ListedColumn("path", "name", 0),
            *_OF_SEVERAL,
            ListedColumn("reward_spread", "number", 1),
            *_SUMS,
            ListedColumn("validate", "", None, _VALIDATE),
        ),
        _ORDER_OF_GROUPS.replace("group_path", "path"),
    ),
    "steps": Listing(
        "List steps with mean reward, failures, tool calls and tokens.",
        "step",
        (
            ListedColumn("validate", "mark", 1, _VALIDATE),
            ListedColumn("step", "", 0, _STEP),
            ListedColumn("groups", "number", 4),
            *_OF_SEVERAL,
            ListedColumn("reward_std", "number", 5),
            ListedColumn("turns_mean", "number", 3),
            *_SUMS,
            ListedColumn("seconds_mean", "seconds", 2),
        ),
        _ORDER_OF_STEPS,
    ),
}
"""View → what its command lists."""
