"""Forwarders that die: nothing is lost, and little comes twice."""

from __future__ import annotations

import uuid
from collections import Counter

from otel_rollout import spool
from tests.faults.forwarding import forward, node_directory, record_and_die, replay
from tests.faults.inside import DEATHS
from tests.faults.target import Receiver
from tests.local_weave import LocalWeave
from tests.mlflow_server import stored


def test_a_forwarder_killed_at_every_point_in_turn(variables: dict[str, str], receiver: Receiver) -> None:
    """Kill -9 around the request and the cursor's write, and in everything that follows a writer's death.

    Lost: nothing. Doubled: the batch whose answer came and whose cursor was not written; each time, no more.
    A forwarder that dies while it heals may be there with its other thread.
    """
    variables["OTEL_ROLLOUT_KEEP"] = "true"
    node_dir = node_directory(variables)
    expected = record_and_die(variables, node_dir)
    report = forward(variables, node_dir, DEATHS)
    assert set(receiver.names) == set(expected)
    assert max(receiver.names.values()) <= 1 + len(DEATHS)
    assert (report.recorded, report.exporters["otlp"].delivered, report.lost) == (len(expected),) * 2 + (0,)
    assert [path.suffix for path in (node_dir / spool.ARCHIVE).iterdir()] == [".zst"]


def test_mlflow_shows_nothing_twice_that_came_twice(variables: dict[str, str], server_uri: str) -> None:
    """A forwarder dies between MLflow's answer and its cursor: the next sends all again, MLflow has it once.

    Lost: nothing. Doubled: nothing that can be seen; nor when all of it is replayed.
    """
    project = f"killed-{uuid.uuid4().hex[:12]}"
    variables |= {
        "OTEL_ROLLOUT_KEEP": "true",
        "OTEL_TRACES_EXPORTER": "mlflow",
        "MLFLOW_TRACKING_URI": server_uri,
        "OTEL_ROLLOUT_PROJECT": project,
    }
    node_dir = node_directory(variables)
    expected = record_and_die(variables, node_dir)
    assert forward(variables, node_dir, ["after the answer"]).lost == 0
    replay(variables, node_dir, "mlflow")
    found = Counter(span.name for trace in stored(server_uri, project) for span in trace.data.spans)
    assert found == Counter(expected)


def test_weave_is_asked_for_what_may_have_come(variables: dict[str, str], local_weave: LocalWeave) -> None:
    """A forwarder dies between Weave's answer and its cursor: the next asks what is there and sends the rest.

    Lost: nothing. Doubled: nothing; nor when all of it is replayed.
    """
    project = f"killed-{uuid.uuid4().hex[:12]}"
    variables |= {
        "OTEL_ROLLOUT_KEEP": "true",
        "OTEL_TRACES_EXPORTER": "weave",
        "OTEL_ROLLOUT_PROJECT": project,
        **local_weave.environment,
    }
    node_dir = node_directory(variables)
    expected = record_and_die(variables, node_dir)
    assert forward(variables, node_dir, ["after the answer"]).lost == 0
    replay(variables, node_dir, "weave")
    assert Counter(call["op_name"] for call in local_weave.calls(project)) == Counter(expected)
