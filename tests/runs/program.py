"""Record in another process, as commands on standard input say.

Each command is one line with a JSON list: ``["configure", {…}]``, ``["record", name]``, ``["set", variable,
value]``, ``["start", {…}]`` (a child with these variables changed; null removes one), ``["child", command]``,
``["shutdown", timeout]``, ``["run"]``. The answer is one line of JSON.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.runs import membership

children: list[subprocess.Popen[str]] = []


def configure(arguments: dict[str, Any]) -> str:
    otel_rollout.configure(**arguments)
    return membership.decide().run_id


def record(name: str) -> str | None:
    with rollout_trace_attr(step=1) as trajectory:
        rollout_trace_op(name=name)(len)("x")
    return trajectory.trace_id


def run() -> str:
    configured = membership.decide()
    return configured.run_id if configured.enabled else ""


def variable(name: str, value: str) -> None:
    os.environ[name] = value


def start(variables: dict[str, str | None]) -> None:
    environment = {**os.environ, **variables}
    children.append(begin({name: value for name, value in environment.items() if value is not None}))


def begin(environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start this program in another process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.runs.program"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def ask(program: subprocess.Popen[str], *command: Any) -> Any:
    """Send a command to a program and return its answer."""
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(json.dumps(command) + "\n")
    program.stdin.flush()
    return json.loads(program.stdout.readline())


def child(*command: Any) -> Any:
    return ask(children[-1], *command)


def shutdown(timeout: float) -> dict[str, Any]:
    report = otel_rollout.shutdown(timeout)
    pending = sum(count.pending for count in report.exporters.values())
    return {"recorded": report.recorded, "pending": pending, "lost": report.lost}


COMMANDS = {f.__name__: f for f in (configure, record, run, start, child, shutdown)} | {"set": variable}

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(COMMANDS[name](*arguments)), flush=True)  # type: ignore[operator]
    for process in children:
        process.communicate()
