"""Spans that claim ids of the run's own spans, or to be a trajectory: none is overwritten, none is added."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.record.recording.provider import mark_of
from otel_rollout.spool.receiver_files import read_address, read_counts
from tests.cli.command import COMMAND
from tests.mlflow_server import stored
from tests.receiver.conftest import Run
from tests.receiver.support import START, json_request, json_span
from tests.spool_reader import Recorded, tree
from tests.waiting import wait_for

StartRun = Callable[..., Run]
PROJECT = "own-ids"
TRACE = "ab" * 16
FORGED: dict[str, Any] = {
    semconv.PROJECT_NAME: "another project",
    semconv.EXPERIMENT_NAME: "another experiment",
    semconv.STEP: 3,
    semconv.SAMPLE_INDEX: 9,
    semconv.ROLLOUT_N: 0,
    semconv.VALIDATE: False,
    semconv.SPAN_KIND: semconv.KIND_AGENT,
    semconv.GROUP_SIZE: 1,
    semconv.SCORE_PREFIX + "reward": 0.25,
    semconv.SCORE_TIME_PREFIX + "reward": START,
}
"""Attributes of a trajectory's root that has a reward."""

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


def run_command(environ: dict[str, str], *arguments: object) -> str:
    """Run the command in a run's environment."""
    command = [*COMMAND, *map(str, arguments)]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def attributes_of(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return attributes in OTLP/JSON."""
    types = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    return [{"key": key, "value": {types[type(value)]: value}} for key, value in values.items()]


def spans_with(told: dict[str, str], moment: int) -> Iterator[dict[str, Any]]:
    """Yield spans with each of the ids that an agent was told, with and without a parent."""
    parent = told["root"].split("-")[2]
    for number, (what, traceparent) in enumerate(sorted(told.items())):
        _, trace_id, span_id, _ = traceparent.split("-")
        for above in {"", parent} - {span_id}:
            start = START + 10 * moment + number + 5 * bool(above)
            yield json_span(
                name=f"{what} {moment} {bool(above)}",
                traceId=trace_id,
                spanId=span_id,
                parentSpanId=above,
                startTimeUnixNano=str(start),
                endTimeUnixNano=str(start + 1),
                attributes=attributes_of(FORGED),
            )


def check_trace(spans: list[Recorded], sent: set[str]) -> None:
    """Check that a trajectory is whole, and that the spans that were sent are below it."""
    assert tree(spans)
    by_name = {span.name: span for span in spans}
    assert {"hold", "score reward", "rollout_trace", *sent} == by_name.keys()
    root = next(span for span in spans if not span.span.parent_span_id)
    assert (root.name, root.scope) == ("rollout_trace", semconv.SCOPE)
    assert root.attributes["rollout.score.reward"] == 1.0
    for name in sent:
        assert "rollout.score.reward" not in by_name[name].attributes
        assert by_name[name].attributes["rollout.sample_index"] == root.attributes["rollout.sample_index"]


def test_spans_with_ids_of_ours_take_nobodys_place(start_run: StartRun, tmp_path: Path) -> None:
    """All spans stay, in the spool, the table and MLflow, and the trajectories are those of the run.

    The ids are of a root, an operation and an inner trajectory. Spans with them come twice each, while ours
    run and after they have ended. So does a forged trajectory.
    """
    store, table = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "table"
    run = start_run(
        2,
        program="hold_operations.py",
        OTEL_TRACES_EXPORTER="mlflow,delta",
        OTEL_ROLLOUT_PROJECT=PROJECT,
        MLFLOW_TRACKING_URI=store,
        OTEL_ROLLOUT_DELTA_URI=str(table),
    )
    wait_for(lambda: read_address(run.node_dir), what="the receiver's address")
    forged = json_span(7, name="forged", traceId=TRACE, attributes=attributes_of(FORGED))
    sent: dict[str, set[str]] = {}
    for moment in (0, 1):
        for told in run.children:
            spans = list(spans_with(told, moment))
            sent.setdefault(told["root"].split("-")[1], set()).update(span["name"] for span in spans)
            for _ in range(2):
                content = orjson.dumps(json_request(*spans, forged))
                assert run.post(content, "application/json").json() == {}
        if moment == 0:
            assert run.process.stdin is not None
            assert run.process.stdout is not None
            run.process.stdin.write("\n")
            run.process.stdin.flush()
            assert run.process.stdout.readline() == "ended\n"
    assert "lost: 0" in run.finish()

    recorded: dict[str, dict[bytes, Recorded]] = {}
    for span in run.recorded():
        known = recorded.setdefault(span.span.trace_id.hex(), {}).setdefault(span.span.span_id, span)
        assert known.span == span.span, "one id, two spans"
        mark = mark_of(span.resource["rollout.run.id"]).decode()
        assert span.span.span_id.hex().startswith(mark) == (span.scope == semconv.SCOPE)
    assert recorded.keys() == {*sent, TRACE}
    for trace_id, names in sent.items():
        check_trace(list(recorded[trace_id].values()), names)

    opened = otel_rollout.open_table(str(table))
    found = opened.trajectories.select("trace_id", "sample_index", "state", "reward").dicts()
    assert {row["trace_id"] for row in found} == sent.keys()
    assert sorted(row["sample_index"] for row in found) == ["0", "1"]
    assert {(row["state"], row["reward"]) for row in found} == {("ok", 1.0)}

    traces = {trace.info.trace_id.removeprefix("tr-"): trace for trace in stored(store, PROJECT)}
    assert traces.keys() == {*sent, TRACE}
    assert not {"step", "sample_index", "reward"} & traces.pop(TRACE).info.tags.keys()
    for trace_id, trace in traces.items():
        names = Counter(span.name for span in trace.data.spans)
        assert names == Counter(span.name for span in recorded[trace_id].values())
        (root,) = (span for span in trace.data.spans if span.parent_id is None)
        assert root.span_type == "AGENT"
        assert trace.info.tags["reward"] == "1.0"
    assert stored(store, "another project") == []

    for source in (run.spool, table):
        listed = json.loads(run_command(run.environ, "list", "--from", source, "--format", "json"))
        assert len(listed) == 2
    counts = read_counts(run.node_dir)
    assert counts is not None
    assert counts.changed_ids == 2 * sum(map(len, sent.values()))
