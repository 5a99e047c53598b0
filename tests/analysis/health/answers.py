"""Ask one check about a small table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from otel_rollout.look.analysis.health.checks import chosen, health_of
from otel_rollout.look.analysis.health.findings import Finding
from otel_rollout.look.analysis.run_choice import run_of
from otel_rollout.table.query import Engine
from otel_rollout.table.store import Store
from tests.table.tables import root, row, score, written


def answer(path: Path, name: str, rows: Iterable[dict[str, Any]]) -> Finding:
    """Return what one check says of a table with these rows."""
    return answer_of(written(path / "table", rows), name)


def answer_of(store: Store, name: str, steps: str | None = None) -> Finding:
    """Return what one check says of a table, or of some of its steps."""
    engine = Engine(store.open())
    (finding,) = health_of(engine, run_of(engine), chosen([name], table=store.location.uri), steps).findings
    return finding


def trace(number: int) -> str:
    """Return the short trace id of a trajectory."""
    return f"{number + 1:x}"


def of_sibling(number: int) -> dict[str, Any]:
    """Return the identity of a trajectory in its step, whose groups have four siblings."""
    return {"sample_index": str(number // 4), "rollout_n": number % 4}


def trajectories(number: int, step: int = 1, **columns: Any) -> Iterator[dict[str, Any]]:
    """Yield root spans of one step."""
    for index in range(number):
        yield root(trace(step * 1000 + index), step=step, **of_sibling(index), **columns)


def given(number: int, step: int, reward: float, **columns: Any) -> dict[str, Any]:
    """Return the span of a reward for a trajectory of :func:`trajectories`."""
    columns = {"step": step, **of_sibling(number), **columns}
    return score(trace(step * 1000 + number), f"e{step}{number:04}", reward, **columns)


def call(number: int, step: int, turn: int = 0, **columns: Any) -> dict[str, Any]:
    """Return a model call in a trajectory of :func:`trajectories`."""
    short = trace(step * 1000 + number)
    columns = {"kind": "LLM", "name": "generate", "step": step, **of_sibling(number), **columns}
    return row(short, span(number, step, turn), "a" + short, **columns)


def span(number: int, step: int, turn: int) -> str:
    """Return the id of a model call's span."""
    return f"c{step:03}{number:04}{turn:04}".rjust(16, "0")
