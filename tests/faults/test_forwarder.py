"""Test killed forwarders: nothing is lost, and little arrives twice."""

from __future__ import annotations

import uuid
from collections import Counter

from otel_rollout.otlp.groups import Group, group_hash
from otel_rollout.spool import layout
from tests.faults.forwarding import forward, nobody_forwards, node_directory, record_and_die, replay
from tests.faults.inside import DEATHS, DEATHS_DECIDING
from tests.faults.job import Job, names
from tests.faults.target import Receiver
from tests.local_weave import LocalWeave
from tests.mlflow_server import stored


def test_forwarder_killed_at_every_point_loses_nothing(variables: dict[str, str], receiver: Receiver) -> None:
    """SIGKILL comes around requests, cursor writes and crash recovery.

    Lost: nothing. Doubled: per kill at most the batch that was answered without its cursor being written. A
    forwarder that dies during crash recovery may be delivering in another thread.
    """
    variables["OTEL_ROLLOUT_KEEP"] = "true"
    node_dir = node_directory(variables)
    expected = record_and_die(variables, node_dir)
    report = forward(variables, node_dir, DEATHS)
    assert set(receiver.names) == set(expected)
    assert max(receiver.names.values()) <= 1 + len(DEATHS)
    assert (report.recorded, report.exporters["otlp"].delivered, report.lost) == (len(expected),) * 2 + (0,)
    assert [path.suffix for path in (node_dir / layout.ARCHIVE).iterdir()] == [".zst"]


def test_forwarder_killed_during_tail_sampling_decides_each_group_once(
    variables: dict[str, str], receiver: Receiver
) -> None:
    """SIGKILL comes around the decision, the request and the cursor write.

    Lost: nothing. Doubled: per kill at most the batch that was answered without its cursor being written.
    """
    variables |= {"OTEL_ROLLOUT_OUTCOME_KEEP": "rate=0.5", "OTEL_ROLLOUT_EXPERIMENT": "e"}
    node_dir = node_directory(variables)
    spans: dict[int, list[str]] = {}
    with nobody_forwards(node_dir), Job(variables) as job:
        for row in range(12):
            spans[row] = [name for n in "ab" for name in job.record(f"{row}{n}", 2, row)]
        job.ask("open", "unended")
    kept = {row for row in spans if group_hash(Group("e", 1, row, False), "outcome ") < 0.5}
    expected = {name for row in kept for name in spans[row]} | set(names("unended", 1))
    deaths = [*DEATHS_DECIDING, *DEATHS[:4]]
    report = forward(variables, node_dir, deaths)
    assert 0 < len(kept) < 12
    assert set(receiver.names) == expected
    assert max(receiver.names.values()) <= 1 + len(deaths)
    count = report.exporters["otlp"]
    assert (report.recorded, count.delivered, count.sampled_out) == (74, len(expected), 74 - len(expected))
    assert report.groups_kept == {"rate": len(kept)}
    assert report.groups_sampled_out == {"ordinary": 12 - len(kept)}
    assert report.lost == 0


def test_spans_sent_twice_are_in_mlflow_once(variables: dict[str, str], server_uri: str) -> None:
    """A forwarder dies after MLflow's answer; the next one sends all spans again.

    Lost: nothing. Doubled: nothing visible, also after a replay of all spans.
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


def test_spans_whose_answer_was_lost_are_in_weave_once(
    variables: dict[str, str], local_weave: LocalWeave
) -> None:
    """A forwarder dies after Weave's answer; the next asks Weave which spans it has.

    Lost: nothing. Doubled: nothing, also after a replay of all spans.
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
