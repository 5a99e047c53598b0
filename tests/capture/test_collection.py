"""The garbage collector ends traced work anywhere, without harm."""

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_rollout import rollout_trace_attr, rollout_trace_op
from tests.spool_reader import Recorded, tree

ROOT = Path(__file__).parents[2]
ROUNDS = 150
"""With the context set in finalizers, one in twenty of these made Python 3.11 die, of each kind."""


def test_process_survives_traced_work_that_the_collector_ends_while_variables_are_set() -> None:
    """All of the work is cleaned up and recorded, also streams of asyncio whose cleanup waits."""
    ran = subprocess.run(
        [
            sys.executable,
            *("-X", "faulthandler", "-m", "tests.capture.programs.closed_by_collector"),
            str(ROUNDS),
        ],
        capture_output=True,
        cwd=ROOT,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    ends = {"operation": 1, "trajectory": 1, "coroutine": 1, "library": 1, "finalizer": 1, "asyncio": 2}
    spans = {"operation": 1, "trajectory": 2, "coroutine": 2, "library": 2, "finalizer": 2, "asyncio": 3}
    assert json.loads(ran.stdout) == {kind: [ends[kind] * ROUNDS, spans[kind] * ROUNDS] for kind in ends}
    assert "Traceback" not in ran.stderr, ran.stderr


@pytest.mark.parametrize("after", ["operation", "trajectory"])
def test_trajectory_that_the_collector_has_ended_is_left(
    recorded: Callable[[], list[Recorded]], after: str
) -> None:
    """What its task records next is a trace of its own, though the collector could not change the context."""

    def abandoned() -> Iterator[None]:
        with rollout_trace_attr(name="abandoned"):
            yield

    tokens = abandoned()
    next(tokens)
    cycle = [tokens]
    cycle.append(cycle)  # type: ignore[arg-type]
    del tokens, cycle
    gc.collect()
    if after == "operation":
        rollout_trace_op(name="operation")(lambda: None)()
    else:
        with rollout_trace_attr(name="trajectory"):
            pass
    ended, own = recorded()
    assert (ended.name, own.name) == ("abandoned", after)
    assert own.span.trace_id != ended.span.trace_id
    assert not own.span.links


def test_collection_in_one_thread_leaves_the_others_their_context(
    recorded: Callable[[], list[Recorded]],
) -> None:
    """A finalizer may take seconds; calls in other threads nest as ever."""
    began, over = threading.Event(), threading.Event()

    class Slow:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            began.set()
            over.wait(30)

    def collect() -> None:
        Slow()
        gc.collect()

    inner = rollout_trace_op(name="inner")(lambda: None)
    outer = rollout_trace_op(name="outer")(lambda: inner())
    rollout_trace_op(name="first")(lambda: None)()  # records, so that the collector is watched
    collecting = threading.Thread(target=collect)
    collecting.start()
    assert began.wait(30)
    with rollout_trace_attr(name="trajectory"):
        outer()
    over.set()
    collecting.join()
    assert tree(recorded()[1:]) == {"trajectory": [{"outer": ["inner"]}]}
