"""Metrics of steps stand in the MLflow run of the training, each once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlflow import MlflowClient

from otel_rollout.deliver.step_curves import StepCurves
from otel_rollout.exporting.api import FailureKind, MetricPoint
from otel_rollout.spool import layout
from otel_rollout.table.store import Store
from otel_rollout_mlflow import MlflowSpanExporter
from tests.faults.inside import SITE
from tests.table.tables import root, row, score, written
from tests.waiting import wait_for
from tests.waits import scaled, set_waits, variable


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write steps soon after they have ended."""
    set_waits(monkeypatch, curves_look=0.05, step_settled=0.2, last_step_settled=0.2, curves_retry=0.2)


@pytest.fixture
def client(uri: str) -> MlflowClient:
    """MLflow's own client."""
    return MlflowClient(tracking_uri=uri)


@pytest.fixture
def run_id(client: MlflowClient, project: str) -> str:
    """A run in the project's experiment, as a trainer starts it."""
    return str(client.create_run(client.create_experiment(project)).info.run_id)


def history(client: MlflowClient, run_id: str, name: str) -> list[tuple[int, float]]:
    """Return step and value of each point of a curve."""
    return sorted((point.step, point.value) for point in client.get_metric_history(run_id, name))


@contextmanager
def curves(node_dir: Path, exporter: MlflowSpanExporter, table: Store) -> Iterator[StepCurves]:
    """Write curves while the block runs."""
    writing = StepCurves(node_dir, "run-1", exporter, "mlflow", table)
    writing.start()
    yield writing
    writing.stop(30)


def test_point_that_is_written_twice_is_stored_once(uri, client, run_id, exporter_for):
    """A forwarder that dies after the request repeats it: curves keep one point per step."""
    exporter = exporter_for(uri)
    point = MetricPoint("rollout/reward_mean", -0.25, 3, 1_767_225_600_000)
    for _ in range(2):
        assert exporter.log_metrics(run_id, [point, MetricPoint("rollout/failed", 0.0, 3, 1)]) is None
    assert history(client, run_id, "rollout/reward_mean") == [(3, -0.25)]
    assert exporter.logged_steps(run_id, "rollout/reward_mean") == {3}
    assert exporter.logged_steps(run_id, "rollout/none") == set()


def test_run_that_does_not_exist_is_refused(uri, exporter_for):
    """The failure names the run, and no other attempt is worthwhile."""
    failure = exporter_for(uri).log_metrics("f" * 32, [MetricPoint("rollout/failed", 0.0, 3, 1)])
    assert failure is not None
    assert failure.kind is FailureKind.REFUSED
    assert "f" * 32 in failure.message


def test_complete_steps_are_written_once_by_two_forwarders(uri, client, run_id, exporter_for, tmp_path):
    """The newest step waits for the end, a step with a running trajectory too; a restart repeats nothing."""
    table = written(
        tmp_path / "table",
        [
            *(root("1"), score("1", "b1", 0.5)),
            *(root("2", step=2), row("3", "b3", "a3", step=2, kind="LLM")),  # trajectory 3 runs
            *(root("4", step=2, validate=True), score("4", "b4", 1.0, step=2, validate=True)),
            root("5", step=3),
        ],
    )
    with curves(tmp_path, exporter_for(uri), table) as first:
        assert not first.note_over(False)
        layout.publish_trackers(tmp_path, {"mlflow": run_id})  # after the first look
        wait_for(lambda: history(client, run_id, "rollout/validation/reward_mean"), what="validation")
        wait_for(lambda: history(client, run_id, "rollout/trajectories"), what="the first step")
        assert history(client, run_id, "rollout/trajectories") == [(1, 1)]
    with curves(tmp_path, exporter_for(uri), table) as second:
        wait_for(lambda: second.note_over(True), what="the end")
    assert history(client, run_id, "rollout/trajectories") == [(1, 1), (2, 2), (3, 1)]
    assert history(client, run_id, "rollout/reward_mean") == [(1, 0.5)]
    assert history(client, run_id, "rollout/validation/reward_mean") == [(2, 1.0)]


def test_curves_of_a_job_stand_in_the_run_that_it_publishes(server_uri, project, tmp_path):
    """The forwarder of a real job writes every step, the last one after the job has ended."""
    client = MlflowClient(tracking_uri=server_uri)
    run_id = client.create_run(client.create_experiment(project)).info.run_id
    variables = {
        "OTEL_TRACES_EXPORTER": "mlflow,delta",
        "OTEL_ROLLOUT_PROJECT": project,
        "OTEL_ROLLOUT_STEP_METRICS": "mlflow",
        "OTEL_ROLLOUT_DELTA_URI": str(tmp_path / "table"),
        "MLFLOW_TRACKING_URI": server_uri,
        "PYTHONPATH": os.pathsep.join([str(SITE), str(SITE.parents[2]), os.environ.get("PYTHONPATH", "")]),
        **variable(scaled(0.05)),
    }
    command = [sys.executable, "-m", "tests.mlflow.programs.stepwise_job", run_id]
    subprocess.run(command, env={**os.environ, **variables}, check=True, timeout=180)
    wait_for(lambda: history(client, run_id, "rollout/trajectories") == [(1, 2), (2, 2)], what="both steps")
    assert history(client, run_id, "rollout/reward_mean") == [(1, 0.5), (2, 1.0)]
    assert history(client, run_id, "rollout/groups_without_spread") == [(1, 0), (2, 0)]
