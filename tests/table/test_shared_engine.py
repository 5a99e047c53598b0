"""An engine for several threads gives the rows that any engine gives, in their order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from otel_rollout.table import views
from otel_rollout.table.query import Engine, SharedEngine, dicts_of
from otel_rollout.table.select import QueryError
from otel_rollout.table.store import Store
from tests.table.generated_table import Shape
from tests.table.tables import generated


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return generated(tmp_path_factory.mktemp("tables") / "table", Shape(2000, per_step=100), rows_each=10_000)


def test_views_have_the_rows_of_any_engine(tmp_path: Path) -> None:
    """Kept rows change no view."""
    table = generated(tmp_path / "table", Shape(40, per_step=20)).open()
    shared, other = SharedEngine(table), Engine(table)
    for view in views.NAMES:
        found = rows_of(shared, view)
        assert found == rows_of(other, view)
        assert found or view in ("unresolved_scores", "engine_requests", "engine_steps", "engine_time")


def rows_of(engine: Engine, view: str) -> list[str]:
    """Return the rows of a view as sorted texts; sums of floats depend on their order."""
    rows = dicts_of(engine.run(f"SELECT * FROM {view}"))
    return sorted(
        repr({name: round(value, 9) if type(value) is float else value for name, value in row.items()})
        for row in rows
    )


def test_sorted_rows_keep_their_order(store: Store) -> None:
    """A result of many batches is in the query's order."""
    found = SharedEngine(store.open()).run("SELECT start_ns FROM spans ORDER BY start_ns DESC")
    starts = found["start_ns"].to_pylist()
    assert len(starts) == 40_000
    assert starts == sorted(starts, reverse=True)


def test_threads_ask_one_engine(store: Store) -> None:
    """Twenty threads that begin at once make each view once, and get their own rows."""
    engine = SharedEngine(store.open())
    found: dict[int, int] = {}

    def ask(step: int) -> None:
        rows = engine.run(f"SELECT count(*) AS number FROM trajectories WHERE step = {step}")
        found[step] = rows["number"][0].as_py()

    threads = [threading.Thread(target=ask, args=(step,)) for step in range(1, 21)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(1, 21), 100)


def test_other_threads_run_during_a_query(store: Store) -> None:
    """The engine computes without Python's lock: a thread has the more turns the longer a query takes."""
    engine = SharedEngine(store.open())
    engine.run("SELECT 1 FROM roots")

    def turns_during(rows: int) -> int:
        heavy = f"SELECT count(*) AS n FROM (SELECT a.value FROM range(3000) AS a, range({rows}) AS b)"
        asking, turns = threading.Thread(target=engine.run, args=[heavy]), 0
        asking.start()
        while asking.is_alive():
            asking.join(0.001)
            turns += 1
        return turns

    assert any(turns_during(rows) > 30 for rows in (20_000, 200_000, 2_000_000))


def test_wrong_query_leaves_nothing_behind(store: Store) -> None:
    """After an error the next query is answered."""
    engine = SharedEngine(store.open())
    with pytest.raises(QueryError, match="There is no column 'rewrd'"):
        engine.run("SELECT rewrd FROM trajectories")
    assert engine.run("SELECT trace_id FROM trajectories", 3).num_rows == 3


def test_one_processor_is_enough(tmp_path: Path) -> None:
    """DataFusion refuses its own plan of a view if it has one partition, as it has by default there."""
    table = generated(tmp_path / "table", Shape(8))
    command = [sys.executable, "-m", "otel_rollout", "list", "--from", table.location.uri, "--format", "json"]
    one = min(os.sched_getaffinity(0))
    ran = subprocess.run(
        ["taskset", "--cpu-list", str(one), *command], capture_output=True, text=True, check=True, timeout=120
    )
    assert len(json.loads(ran.stdout)) == 8
