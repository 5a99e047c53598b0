"""Collect what a step's page shows: its figures, and its groups with their trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from otel_rollout.exporting.batching import grouped
from otel_rollout.look.analysis.evidence import in_steps
from otel_rollout.look.analysis.report.report import StepReport, report_of
from otel_rollout.look.analysis.run_choice import Run, no_step, rows_of
from otel_rollout.look.conversation.trajectories import IN_ORDER
from otel_rollout.table import filters
from otel_rollout.table.query import Engine

_MAX_TRAJECTORIES: Final = 4000
"""Maximum trajectories of a step that its page lists; the page says how many others are left out."""


@dataclass(frozen=True, slots=True)
class StepGroup:
    """A group of a step.

    Attributes:
        path: its name; None for trajectories without a dataset row, which are no group.
        members: the rows of its trajectories in the view ``report_rows``.
        mean: the mean reward; null without one.
        spread: the greatest reward minus the least; null with fewer than two rewards.
        turns: mean model calls of a trajectory.
        tool_errors: failed tool calls; None if no call tells whether it failed.
        seconds: duration of its longest trajectory.
    """

    path: str | None
    members: Sequence[Mapping[str, Any]]
    mean: float | None
    spread: float | None
    turns: float
    tool_errors: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """A step with its groups.

    Attributes:
        run: the run.
        report: the step's figures.
        groups: its groups, the widest spread of rewards first.
        left_out: trajectories that are in no listed group.
        before: number of the previous step that the run has; null for the first.
        after: number of the next step; null for the last.
    """

    run: Run
    report: StepReport
    groups: tuple[StepGroup, ...]
    left_out: int
    before: int | None
    after: int | None


def step_of(engine: Engine, run: Run, step: filters.Step, validate: bool = False) -> Step:
    """Return a step of a run with its groups.

    Raises:
        QueryError: the run has no such step.
    """
    condition = in_steps([(validate, step)])
    found = report_of(engine, run, condition).steps
    if not found:
        name = filters.NO_STEP if step is None else step
        raise no_step(engine, run, f"{'validation ' if validate else ''}step {name}")
    rows = engine.dicts(
        f"SELECT * FROM {rows_of(engine, run)} WHERE {condition} "  # noqa: S608
        f"ORDER BY {IN_ORDER} LIMIT {_MAX_TRAJECTORIES}"
    )
    by_group = grouped(rows, lambda row: (row["group_path"], row["sample_index"])).values()
    groups = sorted(map(_group, by_group), key=lambda group: -(group.spread or 0.0))
    left_out = found[0].trajectories - len(rows)
    return Step(run, found[0], tuple(groups), left_out, *_neighbours(engine, run, step, validate))


def _group(rows: list[dict[str, Any]]) -> StepGroup:
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    errors = [row["tool_errors"] for row in rows if row["tool_calls"]]
    path = rows[0]["group_path"] if rows[0]["sample_index"] is not None else None
    return StepGroup(
        path,
        rows,
        mean=sum(rewards) / len(rewards) if rewards else None,
        spread=max(rewards) - min(rewards) if len(rewards) > 1 else None,
        turns=sum(row["turns"] for row in rows) / len(rows),
        tool_errors=None if set(errors) == {None} else sum(filter(None, errors)),
        seconds=max((row["seconds"] for row in rows if row["seconds"] is not None), default=None),
    )


def _neighbours(engine: Engine, run: Run, step: filters.Step, validate: bool) -> Sequence[int | None]:
    """Return the run's previous and next step; None and None for a step that is no number."""
    if not isinstance(step, int):
        return None, None
    row = engine.dicts(
        f"SELECT max(step) FILTER (WHERE step < {step}) AS before, "  # noqa: S608
        f"min(step) FILTER (WHERE step > {step}) AS after "
        f"FROM {rows_of(engine, run)} WHERE {'' if validate else 'NOT '}validate"
    )[0]
    return row["before"], row["after"]
