"""Make the rows of small runs for tests of reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from otel_rollout.table.query import Engine
from tests.table.tables import START_NS, root, row, score, written

SECOND = 1_000_000_000


def trajectory(
    number: int, *, reward: float | None = None, tool_fails: bool | None = None, **identity: Any
) -> Iterator[dict[str, Any]]:
    """Yield the spans of a trajectory of ten seconds.

    Args:
        number: it makes the ids, and the start time.
        reward: the reward; without one, it has no score.
        tool_fails: whether the call of the tool ``browser`` fails; None for no call.
        identity: columns of each span, such as ``step``.
    """
    trace, start = f"{number:x}", START_NS + number * 100 * SECOND
    identity = {"sample_index": str(number // 2), "rollout_n": number % 2, **identity}
    duration = identity.pop("duration_ns", 10 * SECOND)
    yield root(trace, start_ns=start, duration_ns=duration, **identity)
    call = {"kind": "LLM", "tokens_in": 100, "tokens_out": 20, "finish_reason": "stop"}
    yield row(
        trace, "b" + trace, "a" + trace, start_ns=start + SECOND, duration_ns=4 * SECOND, **call, **identity
    )
    if tool_fails is not None:
        yield row(
            trace, "c" + trace, "a" + trace, start_ns=start + 5 * SECOND, duration_ns=2 * SECOND, kind="TOOL",
            tool_name="browser", status="error" if tool_fails else "ok",
            error_type="TimeoutError" if tool_fails else None, **identity,
        )  # fmt: skip
    if reward is not None:
        yield score(trace, "d" + trace, reward, start_ns=start + 8 * SECOND, duration_ns=SECOND,
                    kind="EVALUATOR", **identity)  # fmt: skip


def engine_of(path: Path, *rows: dict[str, Any]) -> Engine:
    """Return an engine on a new table that has the rows."""
    return Engine(written(path / "table", rows).open())


def failing_tool(run_id: str = "run-1", steps: int = 8, first_bad: int = 6) -> Iterator[dict[str, Any]]:
    """Yield a run of eight trajectories a step whose tool fails, and whose reward falls, from a step on."""
    for step in range(1, steps + 1):
        for place in range(8):
            number = int(run_id[-1]) * 1000 + step * 8 + place
            fails = step >= first_bad and place % 2 == 0
            reward = 0.0 if fails else 0.5 + 0.02 * ((step * 3 + place) % 5)
            yield from trajectory(number, reward=reward, tool_fails=fails, step=step, run_id=run_id)
