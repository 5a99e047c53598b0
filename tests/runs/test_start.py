"""Test the first span of a program, which creates the runtime in a thread while the caller waits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOGGING_HANDLER = """
import logging, otel_rollout
@otel_rollout.rollout_trace_op
def post(message): return len(message)
class Handler(logging.Handler):
    is_busy = False
    def emit(self, record):
        if not Handler.is_busy:
            Handler.is_busy = True
            post(record.getMessage())
            Handler.is_busy = False
logging.getLogger().addHandler(Handler())
with otel_rollout.rollout_trace_attr(step=1): pass
print(otel_rollout.shutdown(0).recorded > 0)
"""
TRACED_REDACTION = """
import otel_rollout
@otel_rollout.rollout_trace_op
def clean(line): return line
def redact(line): return clean(line)
if __name__ == "__main__":
    with otel_rollout.rollout_trace_attr(step=1): pass
    print(otel_rollout.shutdown(0).recorded > 0)
"""
REDACTION_OF_AN_UNFINISHED_IMPORT = """
import otel_rollout
def redact(line):
    import application
    return line
with otel_rollout.rollout_trace_attr(step=1): pass
print(otel_rollout.shutdown(0).recorded > 0)
"""
TIME_LIMITS = """
import glob, os, signal, threading, time
import otel_rollout
from otel_rollout import runtime
create = runtime.create_node_directory
def create_slowly(configured):
    time.sleep(0.6)
    return create(configured)
runtime.create_node_directory = create_slowly  # a slow disk
class Limit(Exception): pass
def strike(*_): raise Limit
signal.signal(signal.SIGALRM, strike)
@otel_rollout.rollout_trace_op
def operation(): pass
struck = 0
for _ in range(2):
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        operation()
    except Limit:
        struck += 1
signal.setitimer(signal.ITIMER_REAL, 0)
operation()
journals = glob.glob(os.environ["OTEL_ROLLOUT_SPOOL_DIR"] + "/*/*/*.journal")
flushing = [thread for thread in threading.enumerate() if thread.name == "otel-rollout-flush"]
otel_rollout.shutdown(0)
print(struck == 2 and len(journals) == 1 and len(flushing) == 1)
"""


@pytest.mark.parametrize(
    ("program", "variables"),
    [
        pytest.param(LOGGING_HANDLER, {"OTEL_TRACES_EXPORTER": "console"}, id="traced logging handler"),
        pytest.param(TRACED_REDACTION, {"OTEL_ROLLOUT_REDACT": "application:redact"}, id="traced redaction"),
        pytest.param(
            REDACTION_OF_AN_UNFINISHED_IMPORT,
            {"OTEL_ROLLOUT_REDACT": "application:redact"},
            id="redaction that imports the module which is being imported",
        ),
        pytest.param(TIME_LIMITS, {}, id="time limits during the wait"),
    ],
)
def test_first_span_that_runs_code_of_the_application_returns(
    tmp_path: Path, program: str, variables: dict[str, str]
) -> None:
    """The program ends, and what it recorded afterwards is there, by one writer."""
    (tmp_path / "application.py").write_text(program)
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "spool",
        "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool"),
        "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))),
        **variables,
    }
    start = ["-c", "import application"] if "import application" in program else ["-m", "application"]
    ran = subprocess.run(
        [sys.executable, *start], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "True", ran.stdout + ran.stderr
