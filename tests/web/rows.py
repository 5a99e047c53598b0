"""Rows of runs that the tests of pages show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.table.tables import START_NS, root, row, score

HOSTILE = "\x1b[2J<script>alert(1)</script>\u202e'\"&{{ 1 }}"
"""Text that a terminal, a page or a template would run."""
STEPS = 3
SAMPLES = 2
ROLLOUTS = 4


def run_rows(start_ns: int = START_NS) -> Iterator[dict[str, Any]]:
    """Yield three steps of two groups of four trajectories, a validation, and a trajectory without a step.

    Rollout 3 of each group fails, and its tool did. Rollout 0 of the last group still runs.
    """
    for step in range(1, STEPS + 1):
        for sample in range(SAMPLES):
            for rollout in range(ROLLOUTS):
                is_running = (step, sample, rollout) == (3, 1, 0)
                yield from _trajectory(start_ns, step, sample, rollout, is_running=is_running)
    yield from _trajectory(start_ns, 1, 0, 0, prefix="5", validate=True)
    yield from _trajectory(start_ns, None, 0, 0, prefix="6")


def _trajectory(
    start_ns: int,
    step: int | None,
    sample: int,
    rollout: int,
    prefix: str = "4",
    is_running: bool = False,
    **columns: Any,
) -> Iterator[dict[str, Any]]:
    trace = f"{prefix}{step or 0}{sample}{rollout}"
    has_failed = rollout == ROLLOUTS - 1
    start = start_ns + int(trace) * 1_000_000_000
    own = {"step": step, "sample_index": str(sample), "rollout_n": rollout, "validate": False, **columns}
    reply = {"reply": f"The answer is {rollout}.", "output": f'{{"content":"The answer is {rollout}."}}'}
    asked = '{"messages":[{"role":"user","content":"What is it?"}]}'
    call = {"kind": "LLM", "tokens_in": 10, "tokens_out": 5, "input": asked, **reply}
    yield row(trace, f"b{trace}", f"a{trace}", name="generate", start_ns=start + 1000, **own, **call)
    status = {"status": "error", "error_type": "TimeoutError"} if has_failed else {"status": "unset"}
    tool = {"kind": "TOOL", "tool_name": "search", **status}
    yield row(trace, f"c{trace}", f"a{trace}", name="search", start_ns=start + 2000, **own, **tool)
    yield score(trace, f"d{trace}", rollout / 4, start_ns=start + 3000, **own)
    if not is_running:
        yield root(trace, start_ns=start, **own, **status)


def hostile_rows() -> Iterator[dict[str, Any]]:
    """Yield a trajectory whose names are hostile, of another run, which began earlier; and one of no run."""
    start = START_NS - 1_000_000_000_000
    yield root(
        "7001",
        start_ns=start,
        run_id=f"../{HOSTILE}",
        experiment=HOSTILE,
        project=HOSTILE,
        sample_index=f"../a/b {HOSTILE}",
        name=HOSTILE,
        status="error",
        error_type=HOSTILE,
        error_message=HOSTILE,
        output=f'"{HOSTILE.encode().hex()}"',
    )
    yield root("7002", start_ns=start - 1000, run_id=None, experiment=None, project=None)
