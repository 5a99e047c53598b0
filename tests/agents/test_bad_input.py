"""Agents and servers that fail: nothing raises but what the library raises, and no other span is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents.rollouts import Rollout, model_calls
from tests.spool_reader import read_directory, tree

PROGRAMS = Path(__file__).parent / "programs"
ERROR = 2


def run(program: str, directory: Path, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> Rollout:
    """Run a program with OpenAI's client instrumented, and read what it recorded."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "spool")
    monkeypatch.setenv("OTEL_ROLLOUT_INSTRUMENT", "openai")
    ran = subprocess.run(
        [sys.executable, str(PROGRAMS / program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    printed = ran.stdout + ran.stderr
    assert ran.returncode == 0, printed
    assert "internal error" not in printed
    return Rollout(printed, read_directory(directory / "spool"), {})


@pytest.mark.parametrize("ending", ["break", "close", "garbage", "exception"])
def test_stream_that_is_abandoned_does_not_disturb_the_next_trajectory(
    ending: str, openai_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer leaves a streamed answer after its first piece; the next trajectory is whole."""
    rollout = run("abandon_stream.py", tmp_path, ending, monkeypatch=monkeypatch)
    by_row = {trace[0].attributes["rollout.sample_index"]: trace for trace in rollout.traces}
    assert set(by_row) == {0, 1}
    assert tree(by_row[1]) == {"rollout_trace": ["ChatCompletion"]}
    assert {span.name for span in by_row[0]} <= {"rollout_trace", "ChatCompletion"}


@pytest.mark.parametrize("fault", ["error", "cut"])
def test_server_that_fails_is_an_error_on_the_span_and_in_the_program(
    fault: str, openai_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers 500, or closes the connection within the answer."""
    rollout = run("fail.py", tmp_path, f"shop:{fault}", monkeypatch=monkeypatch)
    (trace,) = rollout.traces
    assert rollout.printed.startswith(("InternalServerError", "APIConnectionError"))
    (call,) = model_calls(trace)
    assert call.span.status.code == ERROR
    assert tree(trace) == {"rollout_trace": ["ChatCompletion"]}


def test_agent_that_raises_leaves_a_whole_trace(
    openai_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception reaches the program, and ends the root as an error after its model call."""
    rollout = run("fail.py", tmp_path, "shop", monkeypatch=monkeypatch)
    (trace,) = rollout.traces
    assert rollout.printed.startswith("ZeroDivisionError")
    statuses = {span.name: span.span.status.code for span in trace}
    assert statuses["rollout_trace"] == ERROR
    assert statuses["ChatCompletion"] != ERROR
