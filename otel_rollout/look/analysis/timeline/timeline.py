"""Compute what the wall time of a step went into, and which trajectories held it up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from otel_rollout.base import semconv
from otel_rollout.exporting.batching import grouped
from otel_rollout.look.analysis.run_choice import Run
from otel_rollout.look.analysis.timeline.lanes import ERROR, RUNNING, Lane, lanes_of
from otel_rollout.look.analysis.timeline.step_time import (
    Moment,
    PhaseTime,
    bounds_of,
    engine_times,
    moments_of,
    peak_of,
    phase_times,
    ratio,
    tool_times,
)
from otel_rollout.look.analysis.timeline.stragglers import Stragglers, Tail, stragglers_of, tail_of
from otel_rollout.look.analysis.timeline.workers import SlowWorker, Worker, names_of, slow_workers
from otel_rollout.look.conversation.formatting import steps_in_words
from otel_rollout.table import filters
from otel_rollout.table.query import Engine
from otel_rollout.table.select import QueryError

_KINDS: Final = {False: "training", True: "validation"}
_NO_TIMES: Final = "Run {} has no timeline{}: its source does not say when a call ran."
_MODEL_CALLS: Final = "model calls"
_TRAJECTORIES: Final = "whole trajectories"


class WorkerTime(NamedTuple):
    """The trajectories of one process.

    Attributes:
        name: the process.
        node: its machine; empty if unknown.
        trajectories: number of its trajectories.
        median_seconds: median of their durations.
        last_seconds: when the last of them ended, in seconds since the step's start.
    """

    name: str
    node: str
    trajectories: int
    median_seconds: float
    last_seconds: float


@dataclass(frozen=True)
class Timeline:
    """The time of one step.

    Attributes:
        run: the run.
        step: the step.
        validate: whether the step is of validation.
        is_slowest: whether the step was chosen because it took longest.
        start: start of its first trajectory, in nanoseconds.
        wall_seconds: from the start of the first trajectory until the end of the last one.
        peak: greatest number of trajectories that ran at once.
        mean_running: trajectories that ran on average over the wall time.
        phases: the phases that occur.
        tools: phase ``tool`` by name, the most time first.
        engine: phase ``generate`` by engine phase; empty without spans of an engine.
        moments: the running trajectories over the wall time.
        stragglers: the trajectories that held the step; None without such trajectories.
        tail: the end of the step, if only few trajectories ran there for a long time; else None.
        workers: the processes that trajectories ran in; empty if no resource names one.
        slow_workers: processes that are slower than their peers.
        worker_names: the name of each process.
        lanes: the trajectories whose times are known, by start.
        untimed: number of the step's other trajectories.
    """

    run: Run
    step: filters.Step
    validate: bool
    is_slowest: bool
    start: int
    wall_seconds: float
    peak: int
    mean_running: float
    phases: tuple[PhaseTime, ...]
    tools: tuple[PhaseTime, ...]
    engine: tuple[PhaseTime, ...]
    moments: tuple[Moment, ...]
    stragglers: Stragglers | None
    tail: Tail | None
    workers: tuple[WorkerTime, ...]
    slow_workers: tuple[SlowWorker, ...]
    worker_names: dict[Worker, str]
    lanes: tuple[Lane, ...]
    untimed: int

    @property
    def running(self) -> int:
        """Number of trajectories that still run."""
        return sum(lane.state == RUNNING for lane in self.lanes)

    @property
    def failed(self) -> int:
        """Number of trajectories that ended with an error."""
        return sum(lane.state == ERROR for lane in self.lanes)

    @property
    def outside(self) -> int:
        """Number of calls that lie partly outside of their trajectory's time."""
        return sum(lane.outside for lane in self.lanes)


class _Step(NamedTuple):
    """A step of a run, with its wall time in nanoseconds."""

    step: filters.Step
    validate: bool
    wall: int


def timeline(engine: Engine, run: Run, step: filters.Step, validate: bool = False) -> Timeline:
    """Return the time of a step.

    Args:
        engine: queries the table.
        run: the run.
        step: the step.
        validate: whether the step is of validation.

    Raises:
        QueryError: the run has no such step, or no times of it.
    """
    lanes, untimed = lanes_of(engine, run, step, validate)
    if not lanes:
        raise QueryError(_no_step(engine, run, step, validate))
    return _timeline(run, step, validate, lanes, untimed, is_slowest=False)


def slowest_timeline(engine: Engine, run: Run, validate: bool | None = None) -> Timeline:
    """Return the time of the run's step with the longest wall time.

    Args:
        engine: queries the table.
        run: the run.
        validate: whether the step is of validation; by default of training, or of validation if the run has
            no training.

    Raises:
        QueryError: the run has no step of this kind, or no times of one.
    """
    steps = _steps(engine, run)
    wanted = [each for each in steps if each.validate == bool(validate)]
    if not steps:
        raise QueryError(_NO_TIMES.format(run.name, ""))
    if not wanted and validate is None:
        wanted = steps
    for each in sorted(wanted, key=lambda step: -step.wall):
        lanes, untimed = lanes_of(engine, run, each.step, each.validate)
        if lanes:
            return _timeline(run, each.step, each.validate, lanes, untimed, is_slowest=True)
    kind = _KINDS[bool(validate)]
    if engine.count(f"roots WHERE {run.condition} AND {filters.equals('validate', bool(validate))}"):
        raise QueryError(_NO_TIMES.format(run.name, f" of {kind}"))
    raise QueryError(f"Run {run.name} has no step of {kind}.")


def _steps(engine: Engine, run: Run) -> list[_Step]:
    """Return the run's steps; a trajectory lasts until its root ends, or a later reward, as its lane does."""
    timed = f"SELECT * FROM roots WHERE {run.condition} AND start_time IS NOT NULL"  # noqa: S608
    rows = engine.dicts(
        "SELECT root.step, root.step_text, root.validate, "  # noqa: S608
        "max(span.start_ns + coalesce(span.duration_ns, 0)) - min(root.start_ns) AS wall "
        f"FROM timed_spans AS span JOIN ({timed}) AS root "
        "ON span.trace_id = root.trace_id "
        "WHERE span.kind = 'EVALUATOR' OR span.span_id = root.span_id OR root.duration_ns IS NULL "
        "GROUP BY root.step, root.step_text, root.validate ORDER BY root.step, root.step_text"
    )
    return [_Step(filters.step_in(row), row["validate"], row["wall"]) for row in rows]


def _no_step(engine: Engine, run: Run, step: filters.Step, validate: bool) -> str:
    """Return the error for a step without timed trajectories, even if spans outside of others name it."""
    rows = engine.dicts(
        "SELECT step, step_text, validate, bool_or(start_time IS NOT NULL) AS is_timed "  # noqa: S608
        f"FROM roots WHERE {run.condition} GROUP BY step, step_text, validate"
    )
    steps = [(filters.step_in(row), row["validate"]) for row in rows]
    if not any(row["is_timed"] for row in rows):
        return _NO_TIMES.format(run.name, "")
    name = "trajectories without a step" if step is None else f"step {step}"
    if (step, validate) in steps:
        return _NO_TIMES.format(run.name, f" of {name} of {_KINDS[validate]}")
    message = f"Run {run.name} has no {name} of {_KINDS[validate]}."
    if (step, not validate) in steps:
        advice = "leave out --validation" if validate else "add --validation"
        return f"{message} There is one of {_KINDS[not validate]}: {advice}."
    known = [each for each, of_validation in steps if of_validation == validate]
    advice = "; name one of them" if len(known) > 1 else ""  # a range, as other commands take it, is none
    return f"{message} It has {steps_in_words(known)}{advice}." if known else message


def _timeline(
    run: Run, step: filters.Step, validate: bool, lanes: Sequence[Lane], untimed: int, *, is_slowest: bool
) -> Timeline:
    start, end = bounds_of(lanes)
    names = names_of(span.worker for lane in lanes for span in lane.spans if span.worker)
    return Timeline(
        run=run,
        step=step,
        validate=validate,
        is_slowest=is_slowest,
        start=start,
        wall_seconds=(end - start) / 1e9,
        peak=peak_of(lanes),
        mean_running=ratio(sum(lane.end - lane.start for lane in lanes), end - start),
        phases=tuple(phase_times(lanes)),
        tools=tuple(tool_times(lanes)),
        engine=tuple(engine_times(lanes)),
        moments=tuple(moments_of(lanes)),
        stragglers=stragglers_of(lanes),
        tail=tail_of(lanes),
        workers=tuple(_workers(lanes, names, start)),
        slow_workers=tuple(slow_workers(_durations(lanes))),
        worker_names=names,
        lanes=tuple(lanes),
        untimed=untimed,
    )


def _workers(lanes: Sequence[Lane], names: dict[Worker, str], start: int) -> list[WorkerTime]:
    """Return the processes that trajectories ran in, the one that ended last first."""
    found = [
        WorkerTime(
            names[worker],
            worker.node,
            len(own),
            median(lane.seconds for lane in own),
            (max(lane.end for lane in own) - start) / 1e9,
        )
        for worker, own in grouped(lanes, lambda lane: lane.worker).items()
        if worker
    ]
    return sorted(found, key=lambda worker: (-worker.last_seconds, worker.name))


def _durations(lanes: Iterable[Lane]) -> Iterator[tuple[str, Worker, int]]:
    """Yield operation, process and nanoseconds of each operation, and of each trajectory that has ended."""
    for lane in lanes:
        for span in lane.spans:
            if span.worker is None or span.kind == semconv.KIND_AGENT:
                continue
            operation = _MODEL_CALLS if span.kind == semconv.KIND_LLM else span.name
            yield operation, span.worker, span.end - span.start
        if lane.worker and lane.state != RUNNING:
            yield _TRAJECTORIES, lane.worker, lane.end - lane.start
