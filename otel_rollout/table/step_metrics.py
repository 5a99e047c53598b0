"""Sum up the steps of a run as numbers, for the curves of a tracker."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_rollout.table import filters
from otel_rollout.table.query import Engine

if TYPE_CHECKING:
    from deltalake import DeltaTable

TRAJECTORIES: Final = "trajectories"
"""The number that each step has."""


class StepOfRun(NamedTuple):
    """A step of training or of validation."""

    step: int
    validate: bool


class StepNumbers(NamedTuple):
    """The numbers of a step.

    Attributes:
        key: the step.
        end_ms: end of its last trajectory, Unix time in ms.
        running: trajectories whose root span is not in the table.
        values: name → number; a number that is not known is missing.
    """

    key: StepOfRun
    end_ms: int
    running: int
    values: Mapping[str, float]


def spans_of_steps(table: DeltaTable, run_id: str, from_step: int | None) -> dict[StepOfRun, int]:
    """Return each step of a run with the number of its rows, from one step on."""
    condition = filters.equals("run_id", run_id)
    if from_step is not None:
        condition += f" AND step >= {from_step}"
    rows = Engine(table).run(
        "SELECT step, validate, count(*) AS spans FROM recorded_spans "  # noqa: S608
        f"WHERE {condition} AND step IS NOT NULL AND validate IS NOT NULL GROUP BY step, validate"
    )
    columns = (rows[name].to_pylist() for name in ("step", "validate", "spans"))
    return {StepOfRun(step, validate): spans for step, validate, spans in zip(*columns, strict=True)}


def numbers_of(table: DeltaTable, run_id: str, steps: Collection[int]) -> Iterator[StepNumbers]:
    """Yield the numbers of steps of a run, those of training and of validation; reads these steps' rows."""
    listed = ", ".join(map(str, sorted(steps)))
    # A score by id has no step. It names the trace, so it is of one of these steps if the trace is.
    rows = f"{filters.equals('run_id', run_id)} AND (step IN ({listed}) OR step IS NULL)"
    found: Any = Engine(table, rows=rows).run(
        f"SELECT * FROM step_numbers WHERE step IN ({listed}) ORDER BY step, validate"  # noqa: S608
    )
    names = found.column_names
    for values in zip(*(found[name].to_pylist() for name in names), strict=True):
        known = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        key = StepOfRun(known.pop("step"), known.pop("validate"))
        end_ms, running = int(known.pop("end_ms")), int(known.pop("running"))
        yield StepNumbers(key, end_ms, running, {name: float(value) for name, value in known.items()})
