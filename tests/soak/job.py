"""The job of a crash test: a driver and its writers.

``python -m tests.soak.job DIRECTORY driver|NUMBER``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry import trace

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.settings import CONFIG_VARIABLE
from tests.small_segments import set_segment_bytes
from tests.soak.account import Account
from tests.soak.schedule import DRIVER, Schedule, Writer

PLAN, CONFIG, ACCOUNTS, IDLE = "plan.json", "config", "accounts", "idle-"
_PATIENCE = 60


@rollout_trace_op(name="op", exclude=("account",))
def operation(account: Account, payload: str) -> tuple[str, str]:
    return f"{_note('started', account):x}", payload


def _note(kind: str, account: Account) -> int:
    span = trace.get_current_span()
    span_id = span.get_span_context().span_id
    if span.is_recording():
        account.note(kind, span_id)
        return span_id
    return 0


def record(directory: Path, number: int, thread: int, writer: Writer) -> None:
    """What one thread of a writer does."""
    account = Account(directory / ACCOUNTS, number, thread)
    payload = "x" * writer.payload
    for first in range(0, writer.spans, writer.in_trajectory):
        with rollout_trace_attr(step=number, sample_index=first):
            root = _note("root", account)
            for done in range(first, min(first + writer.in_trajectory, writer.spans)):
                if writer.dies_after == done:
                    os.kill(os.getpid(), signal.SIGKILL)
                ended, _ = operation(account, payload)
                if int(ended, 16):
                    account.note("ended", int(ended, 16))
                if writer.pause:
                    time.sleep(writer.pause)
        if root:
            account.note("ended", root)


def write(directory: Path, number: int, writer: Writer) -> None:
    """What a writer does."""
    others = [
        threading.Thread(target=record, args=(directory, number, thread, writer))
        for thread in range(1, writer.threads)
    ]
    for thread in others:
        thread.start()
    record(directory, number, 0, writer)
    for thread in others:
        thread.join()
    if writer.stays or writer.killed_after is not None:
        _wait_to_be_killed(directory)


def _wait_to_be_killed(directory: Path) -> None:
    (directory / f"{IDLE}{os.getpid()}").touch()
    time.sleep(_PATIENCE)


def drive(directory: Path, schedule: Schedule, arguments: dict[str, Any]) -> None:
    """Run the driver: found the run, start the writers, record a little, and end."""
    otel_rollout.configure(**arguments)
    fresh = directory / (CONFIG + ".new")
    fresh.write_text(os.environ[CONFIG_VARIABLE])
    fresh.rename(directory / CONFIG)
    record(directory, len(schedule.writers), 0, DRIVER)
    first = [number for number in range(len(schedule.writers)) if number not in schedule.late]
    waits = [_start(directory, number, schedule.writers[number]) for number in first]
    for wait in waits:
        wait()
    if schedule.driver_end == "shutdown":
        print(otel_rollout.shutdown(5).summary())
    elif schedule.driver_end == "killed":
        _wait_to_be_killed(directory)
    elif schedule.driver_end == "abrupt":
        os._exit(0)


def _start(directory: Path, number: int, writer: Writer) -> Callable[[], object]:
    if not writer.forked:
        command = [sys.executable, "-m", "tests.soak.job", str(directory), str(number)]
        return subprocess.Popen(command).wait
    child = os.fork()
    if child:
        return lambda: os.waitpid(child, 0)
    try:
        write(directory, number, writer)
    finally:
        os._exit(0)


def main() -> None:
    """Be the driver or a writer."""
    directory, role = Path(sys.argv[1]), sys.argv[2]
    plan = json.loads((directory / PLAN).read_text())
    schedule = Schedule.of(plan["seed"])
    set_segment_bytes(schedule.segment_bytes)
    if role == "driver":
        drive(directory, schedule, plan["arguments"])
    else:
        write(directory, int(role), schedule.writers[int(role)])


if __name__ == "__main__":
    main()
