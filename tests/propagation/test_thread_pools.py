"""Trajectories in thread pools, and not in forked children."""

import asyncio
import contextvars
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import trace

from otel_rollout import instrument, rollout_trace_attr, rollout_trace_op, uninstrument

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@rollout_trace_op(name="reward")
def reward(text: str = "", *, scale: float = 1.0) -> float:
    return len(text) * scale


def inside_a_trajectory() -> bool:
    return trace.get_current_span().get_span_context().is_valid


@pytest.fixture
def installed(fresh_process):
    instrument()
    yield
    uninstrument()


def test_run_in_executor_continues_the_trajectory(installed, recorded):
    """verl computes rewards this way; ``asyncio.to_thread`` works too."""

    async def rollout() -> list[float]:
        loop = asyncio.get_running_loop()
        with rollout_trace_attr(step=1), ThreadPoolExecutor(1) as pool:
            return [
                await loop.run_in_executor(None, reward, "a"),
                await loop.run_in_executor(pool, reward, "ab"),
                await asyncio.to_thread(reward, "abc", scale=2),
            ]

    assert asyncio.run(rollout()) == [1, 2, 6]
    *rewards, root = recorded()
    assert [span.span.parent_span_id for span in rewards] == [root.span.span_id] * 3
    assert all(span.attributes["rollout.step"] == 1 for span in rewards)


def test_submit_and_map_continue_the_trajectory(installed, recorded):
    """Arguments, results and exceptions are the function's own."""

    def fails() -> None:
        raise KeyError("mine")

    with ThreadPoolExecutor(2) as pool, rollout_trace_attr():
        assert pool.submit(reward, "ab", scale=0.5).result() == 1
        assert list(pool.map(reward, ["a", "b"])) == [1, 1]
        with pytest.raises(KeyError, match="mine"):
            pool.submit(fails).result()
    assert len({span.span.trace_id for span in recorded()}) == 1


def test_pool_thread_is_outside_the_trajectory_afterwards(installed, tracing):
    """The pool's thread continues with other work."""
    with ThreadPoolExecutor(1) as pool:
        with rollout_trace_attr():
            assert pool.submit(inside_a_trajectory).result()
        assert not pool.submit(inside_a_trajectory).result()


def test_sampled_out_trajectory_has_no_spans_in_threads(installed, recorded):
    """Rewards of such a trajectory leave no orphan spans."""
    with ThreadPoolExecutor(1) as pool, rollout_trace_attr(trace=False):
        pool.submit(reward, "a").result()
    assert recorded() == []


def test_context_variables_of_the_pools_initializer_stay(installed, tracing):
    """The caller's other context variables do not replace the initializer's."""
    pool = ThreadPoolExecutor(1, initializer=lambda: variable.set("pool") and None)
    with pool, rollout_trace_attr():
        assert pool.submit(variable.get).result() == "pool"


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # since Python 3.12, with threads
def test_forked_child_is_outside_the_trajectory(installed, tracing):
    """The trajectory continues in the parent only."""
    with rollout_trace_attr():
        child = os.fork()
        if child == 0:
            os._exit(int(inside_a_trajectory()))
        assert os.waitpid(child, 0)[1] == 0
        assert inside_a_trajectory()


def test_uninstall_restores_the_method():
    """Installing twice equals installing once."""
    original = ThreadPoolExecutor.submit
    instrument()
    instrument()
    assert ThreadPoolExecutor.submit is not original
    uninstrument()
    uninstrument()
    assert ThreadPoolExecutor.submit is original


def test_uninstall_keeps_a_later_patch_of_other_code(tracing, monkeypatch):
    """The replacement below the later patch does nothing then."""
    monkeypatch.setattr(ThreadPoolExecutor, "submit", ThreadPoolExecutor.submit)  # restored afterwards
    instrument()
    ours = ThreadPoolExecutor.submit
    theirs = lambda *args, **kwargs: ours(*args, **kwargs)  # noqa: E731 - a patch like any other
    monkeypatch.setattr(ThreadPoolExecutor, "submit", theirs)
    uninstrument()
    assert ThreadPoolExecutor.submit is theirs
    with ThreadPoolExecutor(1) as pool, rollout_trace_attr():
        assert not pool.submit(inside_a_trajectory).result()
        instrument()
        assert pool.submit(inside_a_trajectory).result()
        uninstrument()
