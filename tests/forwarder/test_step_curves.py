"""Metrics of steps are no obstacle: a forwarder ends, and says what it could not write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import otel_rollout
from otel_rollout import rollout_trace_attr
from otel_rollout.deliver.step_curves import StepCurves, curves_of
from otel_rollout.exporting.api import ExportFailure, FailureKind, MetricPoint
from otel_rollout.exporting.entry_points import load
from otel_rollout.settings import Settings
from otel_rollout.spool import layout
from otel_rollout.table.location import location_of
from otel_rollout.table.rows import batch_of
from otel_rollout.table.store import Store
from tests.table.tables import root, score, written
from tests.waiting import wait_for
from tests.waits import set_waits


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write steps soon after they have ended."""
    set_waits(
        monkeypatch,
        curves_look=0.05,
        curves_last_look=0.05,
        step_settled=0.2,
        last_step_settled=0.2,
        step_abandoned=0.4,
        curves_retry=0.05,
    )


class Tracker:
    """A tracker that keeps points, after it has failed a number of times."""

    own_run: str | None = None

    def __init__(self, *failures: FailureKind) -> None:
        self.points: list[MetricPoint] = []
        self._failures = list(failures)

    def logged_steps(self, run: str, name: str) -> set[int] | ExportFailure:
        return set()

    def log_metrics(self, run: str, points: Sequence[MetricPoint]) -> ExportFailure | None:
        if self._failures:
            return ExportFailure(self._failures.pop(0), f"the run {run} takes nothing")
        self.points += points
        return None

    def written(self) -> list[int]:
        """Return the steps that have points, in the order of writing."""
        return [point.step for point in self.points if point.name == "rollout/trajectories"]


def ended(tracker: Tracker, table: Store, node_dir: Path) -> None:
    """Write curves as a forwarder does whose run is over, until it may end."""
    curves = StepCurves(node_dir, "run-1", tracker, "mlflow", table)
    curves.start()
    wait_for(lambda: curves.note_over(True), what="the end")
    curves.stop(30)


def test_forwarder_ends_if_nobody_names_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log says how to name a run."""
    tracker = Tracker()
    ended(tracker, written(tmp_path / "table", [root("1")]), tmp_path)
    assert tracker.points == []
    assert "MLFLOW_RUN_ID names it" in caplog.text


def test_forwarder_ends_if_the_run_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A deleted run, for example: no further attempt is made, and the log says why."""
    tracker = Tracker(FailureKind.REFUSED)
    layout.publish_trackers(tmp_path, {"mlflow": "gone"})
    ended(tracker, written(tmp_path / "table", [root("1")]), tmp_path)
    assert tracker.points == []
    assert "the run gone takes nothing" in caplog.text


def test_forwarder_ends_without_a_table(tmp_path: Path) -> None:
    """A run that has recorded no trajectory has no table and no curves."""
    tracker = Tracker()
    tracker.own_run = "own"
    ended(tracker, Store(location_of(str(tmp_path / "table"))), tmp_path)
    assert tracker.points == []


def test_forwarder_ends_though_a_step_has_scores_alone(tmp_path: Path) -> None:
    """A score by identity may name a step in which nothing ran; it has no curve."""
    tracker = Tracker()
    tracker.own_run = "own"
    alone = score("2", "e", 1.0, step=77, validate=False, score_by="identity")
    ended(tracker, written(tmp_path / "table", [root("1"), alone]), tmp_path)
    assert tracker.written() == [1]


def test_outage_of_the_tracker_is_waited_for(tmp_path: Path) -> None:
    """Each step is written when the tracker is back, training before validation."""
    tracker = Tracker(FailureKind.UNAVAILABLE, FailureKind.UNAVAILABLE)
    tracker.own_run = "own"
    spans = [root("1"), root("2", step=2), root("3", step=2, validate=True), root("4", step=None)]
    ended(tracker, written(tmp_path / "table", spans), tmp_path)
    assert tracker.written() == [1, 2]
    assert [point.value for point in tracker.points if point.name == "rollout/validation/trajectories"] == [1]


def test_step_that_comes_after_later_ones_is_written_at_the_end(tmp_path: Path) -> None:
    """A validation of an earlier step, or a restart from a checkpoint, when later steps have their points."""
    tracker = Tracker()
    tracker.own_run = "own"
    table = written(tmp_path / "table", [root(f"{step}", step=step) for step in (2, 3, 4)])
    curves = StepCurves(tmp_path, "run-1", tracker, "mlflow", table)
    curves.start()
    wait_for(lambda: tracker.written() == [2, 3], what="the points of the ended steps")
    late = [root("5", step=1), root("6", step=2, validate=True)]
    table.append([batch_of(late)], "late", 1)
    wait_for(lambda: curves.note_over(True), what="the end")
    curves.stop(30)
    assert sorted(tracker.written()) == [1, 2, 3, 4]
    assert [point.step for point in tracker.points if point.name == "rollout/validation/trajectories"] == [2]


def test_home_machine_alone_writes_curves(tmp_path: Path) -> None:
    """Forwarders of other machines' directories write none, nor one whose exporter could not be set up."""
    exporters = {
        "mlflow": load("mlflow", {"tracking_uri": "http://127.0.0.1:1"}),
        "delta": load("delta", {"uri": str(tmp_path / "table")}),
    }
    here, home, copied = Settings(step_metrics="mlflow", node="here"), tmp_path / "here", tmp_path / "there"
    elsewhere = Settings(step_metrics="mlflow", node="here", home_node="there")
    assert curves_of(home, here, exporters) is not None
    assert curves_of(copied, here, exporters) is None
    assert curves_of(home, elsewhere, exporters) is None
    assert curves_of(home, Settings(node="here"), exporters) is None
    assert curves_of(home, here, {"mlflow": exporters["mlflow"]}) is None
    assert curves_of(home, here, {"delta": exporters["delta"]}) is None
    for exporter in exporters.values():
        exporter.shutdown()


def test_missing_exporter_is_named_where_training_logs(
    fresh_process: None, test_exporters: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a table there are no numbers, and training goes on."""
    target = os.environ["OTEL_ROLLOUT_SPOOL_DIR"] + "-delivered.jsonl"
    otel_rollout.configure({"test-file": {"path": target}}, step_metrics="mlflow")
    with rollout_trace_attr(step=1):
        pass
    report = otel_rollout.shutdown(30)
    assert report.undelivered == 0
    assert "no effect without mlflow and delta in OTEL_TRACES_EXPORTER" in caplog.text
