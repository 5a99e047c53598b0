"""Operations that lost their trajectory are counted by the program's last line, `status` and `report`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import run

PROGRAM = """
import contextvars, sys
import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op

generate = rollout_trace_op(kind="LLM")(str.upper)
call_tool = rollout_trace_op(str.lower)

@rollout_trace_op
def grade(question):
    return len(call_tool(question))  # one with its caller

def turn(question):
    return grade(call_tool(generate(question)))

for number in range(int(sys.argv[1])):
    with rollout_trace_attr(step=1, sample_index=number):
        turn("inside")
        with rollout_trace_attr(name="part"):
            generate("inside, too")
for number in range(int(sys.argv[2])):
    contextvars.Context().run(turn, "outside")
"""


@pytest.mark.parametrize(
    ("inside", "outside", "belong"),
    [(3, 2, "6 operations belong"), (3, 1, "3 operations belong"), (2, 0, ""), (0, 2, "")],
    ids=["broken", "another", "whole", "no trajectory"],
)
def test_operations_outside_trajectories_are_said_where_there_are_trajectories(
    inside: int, outside: int, belong: str, tmp_path: Path
) -> None:
    """A run without trajectories traces operations alone, on purpose."""
    environ = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "delta",
        "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool"),
        "OTEL_ROLLOUT_DELTA_URI": str(tmp_path / "rollouts"),
        "OTEL_ROLLOUT_KEEP": "true",
    }
    command = [sys.executable, "-c", PROGRAM, str(inside), str(outside)]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    said = f"{belong} to no trajectory: docs/recording.md says why"
    assert (said in ran.stderr, "no trajectory" in ran.stderr) == (bool(belong), bool(belong))
    spool = ["status", "--spool", str(next((tmp_path / "spool").iterdir()))]
    assert (said in run(*spool)) == bool(belong)
    counted = json.loads(run(*spool, "--json"))[0]
    assert (counted["trajectories"], counted["operations_outside"]) == (inside, 3 * outside)
    if inside:
        report = ["report", "--from", tmp_path / "rollouts"]
        assert (said in run(*report)) == bool(belong)
        assert (said in run(*report, "--html", "-")) == bool(belong)


SERVER = """
import contextvars, sys
import opentelemetry.context, otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.http import extract_headers, inject_headers

tool = rollout_trace_op(str.lower)

def serve(headers):
    opentelemetry.context.attach(extract_headers(headers))
    return tool("X")

headers = {}
with rollout_trace_attr(step=1):
    inject_headers(headers, "http://127.0.0.1:1/")
contextvars.Context().run(serve, headers)
print(otel_rollout.shutdown().summary())
"""


def test_operation_below_another_programs_span_is_not_outside(tmp_path: Path) -> None:
    """A server that goes on with its caller's trace records into the trajectory, as `list` counts it."""
    environ = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "delta",
        "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool"),
        "OTEL_ROLLOUT_DELTA_URI": str(tmp_path / "rollouts"),
    }
    command = [sys.executable, "-c", SERVER]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert "belongs to no trajectory" not in ran.stdout
