"""Traces are linked to their MLflow run, whenever the run becomes known."""

from __future__ import annotations

import uuid

import pytest
from mlflow import MlflowClient
from mlflow_support import stored

from otel_rollout.exporting.api import FailureKind
from tests.sdk_spans import Rollouts, deliver


@pytest.fixture
def rollout_run(project: str) -> str:
    """The id of a rollout run, any text that a directory's name can be."""
    return f"{uuid.uuid4().hex} it's"


@pytest.fixture
def client(uri: str) -> MlflowClient:
    """MLflow's own client."""
    return MlflowClient(tracking_uri=uri)


def begin_run(client: MlflowClient, project: str) -> str:
    """Start a run in the project's experiment, as a trainer does."""
    experiment = client.get_experiment_by_name(project)
    id_ = experiment.experiment_id if experiment else client.create_experiment(project)
    return client.create_run(id_).info.run_id


def linked(client: MlflowClient, project: str, run_id: str, *further: str) -> int:
    """Count the traces of a run in these projects."""
    locations = [client.get_experiment_by_name(name).experiment_id for name in (project, *further)]
    found = client.search_traces(locations=locations, run_id=run_id, max_results=500, include_spans=False)
    return len(found)


def trajectories(rollout_run: str, project: str, number: int):
    """Make root spans of a process of a rollout run."""
    rollouts = Rollouts(project, {"rollout.run.id": rollout_run})
    for _ in range(number):
        with rollouts.span("Agent.run", "AGENT"), rollouts.span("turn"):
            pass
    return rollouts.ended()


def test_run_published_late_gets_all_traces_of_its_rollout(uri, client, project, rollout_run, exporter_for):
    """All traces of two nodes are linked, also those that were delivered before."""
    for _node in range(2):
        deliver(exporter_for(uri), trajectories(rollout_run, project, 60))
    deliver(exporter_for(uri), trajectories("of another rollout", project, 3))
    run_id = begin_run(client, project)
    exporter = exporter_for(uri)

    assert exporter.link_run(run_id, rollout_run) is None
    assert linked(client, project, run_id) == 120
    deliver(exporter, trajectories(rollout_run, project, 2))
    assert linked(client, project, run_id) == 122
    assert exporter.link_run(run_id, rollout_run) is None
    assert linked(client, project, run_id) == 122


def test_traces_of_other_nodes_are_linked_at_the_end(uri, client, project, rollout_run, exporter_for):
    """A forwarder that knows the run links traces of a forwarder that does not."""
    run_id = begin_run(client, project)
    knows, does_not = exporter_for(uri), exporter_for(uri)
    assert knows.link_run(run_id, rollout_run) is None
    deliver(does_not, trajectories(rollout_run, project, 2))

    assert knows.link_run(run_id, rollout_run) is None

    assert linked(client, project, run_id) == 2


def test_traces_of_every_experiment_are_linked(uri, client, project, rollout_run, exporter_for):
    """A rollout that fills several experiments belongs to its run in all of them."""
    other = f"{project}-other"
    deliver(exporter_for(uri), trajectories(rollout_run, project, 1))
    deliver(exporter_for(uri), trajectories(rollout_run, other, 1))
    run_id = begin_run(client, project)

    assert exporter_for(uri).link_run(run_id, rollout_run) is None

    assert linked(client, project, run_id, other) == 2


def test_running_trajectory_is_linked(uri, client, project, rollout_run, exporter_for):
    """An announced trace belongs to the run, and stays in it when it ends."""
    [turn, root] = trajectories(rollout_run, project, 1)
    exporter = exporter_for(uri)
    exporter.announce([root])
    run_id = begin_run(client, project)

    assert exporter.link_run(run_id, rollout_run) is None
    assert linked(client, project, run_id) == 1
    deliver(exporter, [turn, root])
    assert linked(client, project, run_id) == 1


def test_published_run_replaces_the_run_of_the_environment(uri, client, project, rollout_run, exporter_for):
    """Traces belong to MLFLOW_RUN_ID until a run is published, then to that run."""
    first = begin_run(client, project)
    exporter = exporter_for(uri, run_id=first)
    deliver(exporter, trajectories(rollout_run, project, 1))
    second = begin_run(client, project)

    assert exporter.link_run(second, rollout_run) is None
    deliver(exporter, trajectories(rollout_run, project, 1))

    assert (linked(client, project, first), linked(client, project, second)) == (1, 2)


def test_unknown_published_run_is_reported_and_spans_are_delivered(uri, project, rollout_run, exporter_for):
    """A wrong run id costs the link, and no span."""
    exporter = exporter_for(uri)

    failure = exporter.link_run("0" * 32, rollout_run)

    assert failure.kind is FailureKind.REFUSED
    assert f"has no run {'0' * 32}: publish_run(mlflow=...) takes the id of a run" in failure.message
    deliver(exporter, trajectories(rollout_run, project, 1))
    assert len(stored(uri, project)) == 1


def test_deleted_published_run_does_not_hold_spans_back(uri, client, project, rollout_run, exporter_for):
    """Deleting the run costs the link, and no span."""
    run_id = begin_run(client, project)
    exporter = exporter_for(uri)
    assert exporter.link_run(run_id, rollout_run) is None
    client.delete_run(run_id)

    deliver(exporter, trajectories(rollout_run, project, 1))

    assert len(stored(uri, project)) == 1


def test_link_to_a_server_that_is_down_is_unavailable(closed_port_uri, rollout_run, exporter_for):
    """The caller tries again later."""
    failure = exporter_for(closed_port_uri).link_run("0" * 32, rollout_run)

    assert failure.kind is FailureKind.UNAVAILABLE


def test_rollout_run_is_a_searchable_tag(uri, project, rollout_run, exporter_for):
    """MLflow's search syntax finds it with backticks."""
    deliver(exporter_for(uri), trajectories(rollout_run, project, 1))

    assert len(stored(uri, project, f'tags.`rollout.run.id` = "{rollout_run}"')) == 1
