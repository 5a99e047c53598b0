"""Test a program's first span, whose runtime a thread creates."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import otel_rollout
from otel_rollout import rollout_trace_op
from otel_rollout.record import runtime
from otel_rollout.record.recording.state import state
from otel_rollout.record.runs.founding import create_node_directory
from otel_rollout.spool import layout, segments
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("forwarder")

PROGRAMS = "tests.runs.programs"


@pytest.mark.parametrize(
    ("start", "variables"),
    [
        pytest.param(
            ["-m", f"{PROGRAMS}.traced_logging_handler"],
            {"OTEL_TRACES_EXPORTER": "console"},
            id="traced logging handler",
        ),
        pytest.param(
            ["-m", f"{PROGRAMS}.traced_redaction"],
            {"OTEL_ROLLOUT_REDACT": f"{PROGRAMS}.traced_redaction:redact"},
            id="traced redaction",
        ),
        pytest.param(
            ["-c", f"import {PROGRAMS}.redaction_of_unfinished_import"],
            {"OTEL_ROLLOUT_REDACT": f"{PROGRAMS}.redaction_of_unfinished_import:redact"},
            id="redaction that imports the module which is being imported",
        ),
        pytest.param(["-m", f"{PROGRAMS}.time_limits_at_start"], {}, id="time limits during the wait"),
    ],
)
def test_first_span_that_runs_code_of_the_application_returns(
    tmp_path: Path, start: list[str], variables: dict[str, str]
) -> None:
    """The program ends, and what it recorded afterwards is there, by one writer."""
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "spool",
        "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool"),
        **variables,
    }
    ran = subprocess.run(
        [sys.executable, *start], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "True", ran.stdout + ran.stderr


class TimeLimit(Exception):
    """Raised by a signal handler of the application."""


@rollout_trace_op
def operation() -> None:
    pass


class SlowStart:
    """A first span whose runtime is created slowly.

    Attributes:
        may_end: set to let the creation go on.
        thread_id: id of the thread that creates the runtime.
    """

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.thread_id = 0

    def created(self, create: Callable[..., Path], configured: Any) -> Path:
        self.thread_id = threading.get_ident()
        if not self.may_end.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        assert self.may_end.wait(60)
        return create(configured)

    def end(self) -> None:
        """Let the creation end, and wait for its thread."""
        self.may_end.set()
        wait_for(lambda: not threads("otel-rollout-start"), what="the start")


def threads(*names: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in names]


@pytest.fixture
def interrupted(tracing: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowStart]:
    """Interrupt the first span by a time limit while its runtime is being created."""
    slow, create = SlowStart(), create_node_directory

    def strike(*_: object) -> None:
        raise TimeLimit

    monkeypatch.setattr(runtime, "create_node_directory", lambda configured: slow.created(create, configured))
    before = signal.signal(signal.SIGALRM, strike)
    try:
        with pytest.raises(TimeLimit):
            operation()
    finally:
        signal.signal(signal.SIGALRM, before)
    yield slow
    slow.end()


@pytest.mark.parametrize("is_under_way", [True, False], ids=["under way", "over"])
@pytest.mark.parametrize("ending", ["shutdown", "configure"])
def test_runtime_of_an_interrupted_start_is_closed_with_its_run(
    interrupted: SlowStart, tmp_path: Path, ending: str, is_under_way: bool
) -> None:
    """shutdown() and configure() leave no writer and no thread.

    The next run records.
    """
    if not is_under_way:
        interrupted.end()
    if ending == "shutdown":
        assert otel_rollout.shutdown(30).recorded == 0
        otel_rollout.configure("spool", project_name="other")
    else:
        otel_rollout.configure("spool", project_name="other")
    interrupted.end()
    wait_for(lambda: not threads("otel-rollout-flush", "otel-rollout-keep"), what="the end of the run")
    assert state.present_runtime() is None
    assert not any(map(segments.living_writers, layout.node_directories(tmp_path / "spool")))
    operation()
    assert otel_rollout.shutdown(30).recorded == 1


def test_thread_that_gets_the_id_of_the_starting_thread_records(interrupted: SlowStart) -> None:
    """The system gives the id of a thread that has ended to another one."""
    interrupted.end()
    found: list[object] = []

    def look() -> None:
        if threading.get_ident() == interrupted.thread_id:
            found.append(runtime.current())

    for _ in range(1000):
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join()
        if found:
            break
    assert found[0] is not None


def test_runtime_is_released_by_shutdown(tracing: None) -> None:
    """Nothing refers to a runtime that was closed."""
    operation()
    assert state.start is None
    otel_rollout.shutdown(30)
    assert state.present_runtime() is None


def test_shutdown_in_a_signal_handler_ends_the_start_that_it_interrupts(
    tracing: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The interrupted span is not recorded, and a later run records."""
    slow, create = SlowStart(), create_node_directory

    def end(*_: object) -> None:
        otel_rollout.shutdown(0)
        slow.may_end.set()

    monkeypatch.setattr(runtime, "create_node_directory", lambda configured: slow.created(create, configured))
    before = signal.signal(signal.SIGALRM, end)
    try:
        operation()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert state.present_runtime() is None
    assert "tracing is OFF" not in caplog.text
    otel_rollout.configure("spool", project_name="other")
    operation()
    assert otel_rollout.shutdown(30).recorded == 1
