"""Write the numbers of each step into a tracker's run, from the rollout table.

The table has the spans of every node. So one forwarder, that of the home machine, writes the numbers, with
the definitions of the views. A tracker cannot take a number back. So a step is written once, when it is
complete: a later step has begun, no trajectory runs, and no row has come for a while. The tracker's run
itself tells which steps are written. So a new forwarder writes what is missing there, and nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.base.errors import warn_once
from otel_rollout.base.waits import waits
from otel_rollout.deliver.forwarder_thread import ForwarderThread
from otel_rollout.exporting.api import ExportFailure, FailureKind, LogsMetrics, MetricPoint
from otel_rollout.exporting.batching import chunks
from otel_rollout.exporting.entry_points import home_table
from otel_rollout.settings import Settings
from otel_rollout.spool import layout
from otel_rollout.table import filters
from otel_rollout.table.errors import NoTableError
from otel_rollout.table.location import location_of
from otel_rollout.table.query import Engine
from otel_rollout.table.store import Store

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from opentelemetry.sdk.trace.export import SpanExporter

TRAJECTORIES: Final = "trajectories"
"""Name of the number that every step has."""


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
    """Return step → number of its rows, for the steps of a run from ``from_step`` on."""
    condition = filters.equals("run_id", run_id)
    if from_step is not None:
        condition += f" AND step >= {from_step}"
    rows = Engine(table).dicts(
        "SELECT step, validate, count(*) AS spans FROM recorded_spans "  # noqa: S608
        f"WHERE {condition} AND step IS NOT NULL AND validate IS NOT NULL GROUP BY step, validate"
    )
    return {StepOfRun(row["step"], row["validate"]): row["spans"] for row in rows}


def numbers_of(table: DeltaTable, run_id: str, steps: Collection[int]) -> Iterator[StepNumbers]:
    """Yield the numbers of some steps of a run, of training and validation; read only these steps' traces."""
    engine, listed = Engine(table), ", ".join(map(str, sorted(steps)))
    of_run = filters.equals("run_id", run_id)
    in_steps = f"SELECT trace_id FROM recorded_spans WHERE {of_run} AND step IN ({listed})"  # noqa: S608
    # A sub-trajectory can name another step than its trajectory.
    parted = engine.dicts(
        f"SELECT DISTINCT trace_id FROM recorded_spans WHERE {of_run} AND step NOT IN ({listed}) "  # noqa: S608
        f"AND trace_id IN ({in_steps})"
    )
    # A score by id has no step. It names the trace, so it is of one of these steps if the trace is.
    rows = f"{of_run} AND (step IN ({listed}) OR step IS NULL)"
    narrowed = engine.narrowed(rows, traces=[row["trace_id"] for row in parted])
    query = f"SELECT * FROM step_numbers WHERE step IN ({listed}) ORDER BY step, validate"  # noqa: S608
    for row in narrowed.dicts(query):
        known = {name: value for name, value in row.items() if value is not None}
        key = StepOfRun(known.pop("step"), known.pop("validate"))
        end_ms, running = int(known.pop("end_ms")), int(known.pop("running"))
        yield StepNumbers(key, end_ms, running, {name: float(value) for name, value in known.items()})


_PREFIX: Final = "rollout/"
_VALIDATION_PREFIX: Final = "rollout/validation/"
_MAX_STEPS: Final = 64
"""Maximum steps whose rows are read at once."""
_NO_RUN: Final = ExportFailure(
    FailureKind.REFUSED,
    "no run of the tracker is known; publish_run(mlflow=…) or MLFLOW_RUN_ID names it",
)


class StepCurves(ForwarderThread):
    """Writes the curves of a run, in a thread of its own.

    Args:
        node_dir: where the tracker's run is published.
        run_id: id of the rollout's run.
        tracker: the exporter of the tracker.
        name: the exporter's name.
        table: the rollout table.
    """

    def __init__(self, node_dir: Path, run_id: str, tracker: LogsMetrics, name: str, table: Store) -> None:
        super().__init__("step-curves")
        self._node_dir = node_dir
        self._run_id = run_id
        self._tracker = tracker
        self._name = name
        self._table = table
        self._run: str | None = None
        self._written: set[StepOfRun] = set()
        self._spans: dict[StepOfRun, tuple[int, float]] = {}
        """Step → number of its rows, and when that number was new, by the monotonic clock."""
        self._seen: tuple[int, bool] | None = None
        """The table's version at the last look, and whether the run was over."""
        self._is_begun = self._is_refused = self._is_over = self._is_settled = False

    def note_over(self, is_over: bool) -> bool:
        """Store whether no writer lives and everything is delivered; return whether all steps are written."""
        self._is_over = is_over
        self._is_settled = self._is_settled and is_over
        return self._is_settled

    def _work(self) -> None:
        next_look = 0.0
        while not self._stop.wait(waits().curves_last_look):
            if not self._is_over and time.monotonic() < next_look:
                continue
            try:
                failure = self._write_due(self._is_over)
            except Exception:
                logger.exception("metrics of steps could not be written")
                failure = None
            if failure is not None:
                warn_once(f"metrics of steps are not written: {failure.message.rstrip('.')}", logger=logger)
                self._stop.wait(waits().curves_retry)
            next_look = time.monotonic() + waits().curves_look

    def _write_due(self, is_over: bool) -> ExportFailure | None:
        """Write every complete step; return why some could not be written."""
        run = layout.read_trackers(self._node_dir).get(self._name) or self._tracker.own_run
        if run != self._run:
            self._run, self._is_begun, self._is_refused = run, False, False
        if run is None or self._is_refused:
            self._is_settled = is_over
            return _NO_RUN if is_over and run is None else None
        if not self._is_begun and (failure := self._begin(run)) is not None:
            return failure
        try:
            table = self._table.open()
        except NoTableError:
            self._is_settled = is_over
            return None
        self._look(table, is_over)
        due = [key for key in sorted(self._spans) if self._is_due(key, is_over)]
        failure = self._write(table, run, due, is_over)
        self._is_settled = is_over and (self._is_refused or self._spans.keys() <= self._written)
        return failure

    def _begin(self, run: str) -> ExportFailure | None:
        """Read from the tracker's run which steps are written."""
        written: set[StepOfRun] = set()
        for validate in (False, True):
            found = self._tracker.logged_steps(run, _name_of(TRAJECTORIES, validate))
            if isinstance(found, ExportFailure):
                return self._failed(found)
            written |= {StepOfRun(step, validate) for step in found}
        self._written, self._is_begun = written, True
        return None

    def _look(self, table: DeltaTable, is_over: bool) -> None:
        """Note which steps have new rows; before the end, of the steps from the first unwritten one on."""
        seen = table.version(), is_over
        if seen == self._seen:
            return
        first = min(self._spans.keys() - self._written, default=max(self._spans, default=None))
        found = spans_of_steps(table, self._run_id, None if is_over or first is None else first.step)
        now = time.monotonic()
        for key, spans in found.items():
            if self._spans.get(key, (0, 0.0))[0] != spans:
                self._spans[key] = spans, now
        self._seen = seen

    def _is_due(self, key: StepOfRun, is_over: bool) -> bool:
        if key in self._written:
            return False
        if not is_over and not any(other.step > key.step for other in self._spans):
            return False
        settled = waits().last_step_settled if is_over else waits().step_settled
        return self._quiet_seconds(key) >= settled

    def _quiet_seconds(self, key: StepOfRun) -> float:
        return time.monotonic() - self._spans[key][1]

    def _write(
        self, table: DeltaTable, run: str, due: list[StepOfRun], is_over: bool
    ) -> ExportFailure | None:
        for keys in chunks(due, _MAX_STEPS):
            for step in numbers_of(table, self._run_id, {key.step for key in keys}):
                if self._stop.is_set():
                    return None
                is_running = step.running and self._quiet_seconds(step.key) < waits().step_abandoned
                if step.key not in keys or (is_running and not is_over):
                    continue
                if (failure := self._tracker.log_metrics(run, points_of(step))) is not None:
                    return self._failed(failure)
                self._written.add(step.key)
            if is_over:  # what has scores alone, and no trajectory, has no numbers to wait for
                for key in set(keys) - self._written:
                    del self._spans[key]
        return None

    def _failed(self, failure: ExportFailure) -> ExportFailure:
        """Note whether a failure needs a person: then only the next forwarder tries again."""
        self._is_refused = failure.kind is not FailureKind.UNAVAILABLE
        return failure


def points_of(step: StepNumbers) -> list[MetricPoint]:
    """Return the numbers of a step as points of curves, at the time when the step ended."""
    return [
        MetricPoint(_name_of(name, step.key.validate), value, step.key.step, step.end_ms)
        for name, value in step.values.items()
    ]


def _name_of(name: str, validate: bool) -> str:
    return (_VALIDATION_PREFIX if validate else _PREFIX) + name


def curves_of(
    node_dir: Path, configured: Settings, exporters: Mapping[str, SpanExporter]
) -> StepCurves | None:
    """Return the curves that the settings ask for; None if another machine or nobody writes them.

    Args:
        node_dir: the node directory.
        configured: settings of the run.
        exporters: the exporters that are set up, by name.
    """
    name = configured.step_metrics
    tracker = exporters.get(name)
    table = home_table(node_dir, configured, exporters)
    if table is None or not isinstance(tracker, LogsMetrics):  # not set up, which is logged
        return None
    manifest = layout.read_manifest(node_dir)
    run_id = manifest.run_id if manifest else configured.run_id
    return StepCurves(node_dir, run_id, tracker, name, Store(location_of(table)))
