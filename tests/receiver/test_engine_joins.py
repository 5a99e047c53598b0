"""Engine spans that reach the receiver without a trace header, in a run of real processes."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import otel_rollout
from otel_rollout.base import semconv
from otel_rollout.spool.receiver_files import read_address
from otel_rollout.viewer.spool_source import SpoolSource
from tests.cli.command import COMMAND
from tests.receiver.conftest import Run
from tests.receiver.support import request
from tests.waiting import wait_for
from tests.waits import changed

StartRun = Callable[..., Run]
Row = dict[str, Any]
HASTY = changed(engine_settle=0.1, engine_call_waited=1)
"""For a shutdown that waits briefly for the model calls of requests that have none."""
COLUMNS = ("trace_id", "span_id", "parent_span_id", "name", "sample_index")


def engine_request(number: int, call: dict[str, Any], id_: str = "") -> bytes:
    """Make the request in which an engine exports the span of a model call."""
    begin, end = call["times"]
    middle = (begin + end) // 2
    latencies = {
        semconv.LATENCY_FIRST_TOKEN: 0.01,
        semconv.LATENCY_TOTAL: 0.02,
        semconv.LATENCY_QUEUE: 0.002,
        semconv.LATENCY_PREFILL: 0.008,
        semconv.LATENCY_DECODE: 0.009,
    }
    attributes = [{"key": key, "value": {"double_value": value}} for key, value in latencies.items()]
    attributes.append({"key": semconv.GEN_AI_REQUEST_ID, "value": {"string_value": id_ or call["id"]}})
    fields = {
        "trace_id": (1000 + number).to_bytes(16, "big"),
        "span_id": (1000 + number).to_bytes(8, "big"),
        "name": semconv.ENGINE_REQUEST,
        "kind": 2,
        "start_time_unix_nano": middle - 10_000_000,
        "end_time_unix_nano": middle + 10_000_000,
        "attributes": attributes,
    }
    return request([fields], scope="vllm.tracing.otel", resource={"service.name": "vllm"})


def rows_of(table: Path) -> list[Row]:
    """Return the table's spans."""
    spans = otel_rollout.open_table(str(table)).spans.select(*COLUMNS).dicts()
    return sorted(spans, key=lambda row: (row["trace_id"], row["span_id"]))


def check_tree(rows: list[Row], calls: int) -> None:
    """Check that each trajectory's model call has one request with its phases."""
    by_id = {(row["trace_id"], row["span_id"]): row for row in rows}
    assert len(by_id) == len(rows)
    above: Counter[tuple[str, str]] = Counter()
    for row in rows:
        parent = by_id.get((row["trace_id"], row["parent_span_id"]))
        if row["sample_index"] is not None:
            above[row["name"], parent["name"] if parent else ""] += 1
    for name, parent_name in (
        ("ask", "rollout_trace"),
        ("llm_request", "ask"),
        ("queue", "llm_request"),
        ("prefill", "llm_request"),
        ("decode", "llm_request"),
    ):
        assert above[name, parent_name] == calls, above


def run_command(environ: dict[str, str], *arguments: object) -> str:
    """Run the command in a run's environment."""
    command = [*COMMAND, *map(str, arguments)]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_engine_spans_are_below_their_calls_wherever_they_are_read(
    start_run: StartRun, tmp_path: Path
) -> None:
    """The table, the spool, its import and its replay show one tree; `status` counts what has joined."""
    tables = {name: tmp_path / name for name in ("delivered", "imported", "replayed")}
    variables = {"OTEL_TRACES_EXPORTER": "delta", "OTEL_ROLLOUT_DELTA_URI": str(tables["delivered"])}
    run = start_run(5, program="ask_models.py", **variables, **HASTY)
    wait_for(lambda: read_address(run.node_dir), what="the receiver's address")
    for number, call in enumerate(run.children):
        assert run.post(engine_request(number, call)).status_code == 200
    assert run.post(engine_request(9, run.children[0], "chatcmpl-of nobody")).status_code == 200
    # Each shutdown waits for delivery: the request that has no call delays it.
    assert "34 spans recorded; 34 delivered to delta, 0 pending; lost: 0" in run.finish()
    rows = rows_of(tables["delivered"])
    check_tree(rows, calls=5)
    (status,) = json.loads(run_command(run.environ, "status", "--json", "--spool", run.spool))
    assert status["engine_requests"] == {"joined": 5, "no call has its id": 1}
    text = run_command(run.environ, "status", "--spool", run.spool)
    assert "engine requests without a trace header (joined): 5" in text
    run.close()
    wait_for(lambda: not list(run.node_dir.glob("*.jsonl")), what="the archive")
    for name, command in (("imported", "import"), ("replayed", "replay")):
        environ = run.environ | {"OTEL_ROLLOUT_DELTA_URI": str(tables[name]), "OTEL_ROLLOUT_RECEIVE": ""}
        run_command(environ, command, run.spool, "--to", "delta")
        assert rows_of(tables[name]) == rows
    again = {**run.environ, "OTEL_ROLLOUT_DELTA_URI": str(tables["imported"])}
    assert "0 spans imported" in run_command(again, "import", run.spool, "--to", "delta")
    trace_id = next(row["trace_id"] for row in rows if row["sample_index"] == "0")
    found = SpoolSource(run.spool).spans(trace_id)
    assert Counter(span.name for span in found)["llm_request"] == 1
    assert len(found) == 6
    run_command(run.environ, "show", "--from", run.spool, trace_id)


def test_with_sampling_only_joined_engine_spans_are_delivered(start_run: StartRun, tmp_path: Path) -> None:
    """The receiver takes requests of trajectories alone; a request of no recorded call is sampled out."""
    table = tmp_path / "delivered"
    run = start_run(
        2,
        program="ask_models.py",
        OTEL_TRACES_EXPORTER="delta",
        OTEL_ROLLOUT_DELTA_URI=str(table),
        OTEL_ROLLOUT_RECEIVE_TRACES="trajectories",
        **HASTY,
    )
    wait_for(lambda: read_address(run.node_dir), what="the receiver's address")
    for number, call in enumerate(run.children):
        assert run.post(engine_request(number, call)).status_code == 200
    assert run.post(engine_request(9, run.children[0], "chatcmpl-of nobody")).status_code == 200
    assert "16 spans recorded; 12 delivered to delta, 0 pending; 4 sampled out; lost: 0" in run.finish()
    rows = rows_of(table)
    assert len(rows) == 12
    check_tree(rows, calls=2)
