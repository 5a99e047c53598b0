"""An exception of the application's signal handler reaches the application."""

import contextlib
import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from otel_rollout.record import runtime

PACKAGE = str(Path(otel_rollout.__file__).parent)


class TimeLimit(Exception):
    """The exception of a time limit: a subclass of ``Exception``, like most of them."""


class Preempted(BaseException):
    """The exception that a job's own SIGTERM handler raises."""


class Shown:
    def __repr__(self):
        return "shown"


PLAIN = {"messages": [{"role": "user", "content": "x" * 100}] * 3}
ODD = {1: Shown(), (1, 2): {3}, "deep": [[[Shown()]]], "huge": 1 << 70, "half": "\ud800"}


@rollout_trace_op
def echo(value, other=None):
    return value


def one_trajectory() -> None:
    with rollout_trace_attr(step=1, sample_index=2) as trajectory:
        trajectory.set_input(PLAIN)
        echo(PLAIN, other=ODD)
        span = trace.get_current_span()
        span.set_attribute("list", [1, 2])
        span.add_event("event", {"odd": Shown()})
        score("reward", 1.0)


def counted() -> int:
    """Return the number of spans that this process's writer has recorded."""
    active = runtime.current()
    assert active is not None
    return active.writer.counts().recorded


class Strikes:
    """Raises the signal at the n-th call of one of our functions."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0

    def __call__(self, frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.count += 1
            if self.count == self.at:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGALRM)


def struck(at: int) -> int:
    strikes = Strikes(at)
    sys.setprofile(strikes)
    try:
        one_trajectory()
    finally:
        sys.setprofile(None)
    return strikes.count


@pytest.mark.parametrize("kind", [TimeoutError, Preempted])
def test_signal_handlers_exception_passes_through_any_function(recorded, kind):
    """The signal may arrive at the entry of any of our functions.

    Recording continues afterwards.
    """

    def ring(*_):
        raise kind("now")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        one_trajectory()
        context = otel_context.get_current()
        calls = struck(at=0)
        assert calls > 80
        swallowed = []
        for number in range(1, calls + 1):
            try:
                if struck(at=number) >= number:  # a trajectory that waits for the writer has more calls
                    swallowed.append(number)
            except kind:
                pass
            otel_context.attach(context)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert swallowed == []
    known = len(recorded())
    one_trajectory()
    assert [span.name for span in recorded()[known:]] == ["echo", "score reward", "rollout_trace"]
    assert counted() == len(recorded())


def test_interrupted_span_larger_than_the_journal_is_whole_or_absent(recorded, monkeypatch):
    """The segment has neither half a line nor a line that is not counted."""

    def ring(*_):
        raise TimeLimit("now")

    @rollout_trace_op
    def large(value):
        return None

    value = ["x" * 100_000] * 50
    monkeypatch.setenv("OTEL_ROLLOUT_VALUE_LIMIT", str(1 << 24))
    before = signal.signal(signal.SIGALRM, ring)
    try:
        context = otel_context.get_current()
        for number in itertools.count():
            strikes = Strikes(number)
            sys.setprofile(strikes)
            with contextlib.suppress(TimeLimit):
                large(value)
            sys.setprofile(None)
            otel_context.attach(context)
            if number and strikes.count < number:
                break
    finally:
        signal.signal(signal.SIGALRM, before)
    echo(PLAIN)
    spans = recorded()
    assert [span.name.rpartition(".")[2] for span in spans] == ["large"] * (len(spans) - 1) + ["echo"]
    assert len(spans) > 2
    assert counted() == len(spans)


def test_writer_stays_usable_after_exceptions_at_any_instruction(tmp_path):
    """An exception may strike between taking a lock and using it."""
    command = [sys.executable, "-m", "tests.capture.programs.time_limits_anywhere", "2"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    seen, recorded_after, none_dropped = json.loads(ran.stdout)
    assert seen > 5
    assert (recorded_after, none_dropped) == (150, True), ran.stderr


def test_start_interrupted_repeatedly_leaves_one_writer(tmp_path):
    """Time limits may strike at any function of ours during the first span."""
    command = [sys.executable, "-m", "tests.capture.programs.interrupted_start", str(tmp_path / "starts")]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    interrupted, journals, threads, files = json.loads(ran.stdout)
    assert interrupted > 20
    assert journals == 1
    assert threads == ["MainThread", "otel-rollout-flush", "otel-rollout-keep"]
    assert files < 10
