"""Pruning removes whole steps of runs, and leaves every other row as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from otel_rollout.table import compaction, pruning
from otel_rollout.table.errors import TableError
from otel_rollout.table.store import Store
from tests.table.tables import START_NS, all_rows, asked, root, row, score, written

_HOUR_NS = 3600 * 10**9


def at(hours: float) -> int:
    return START_NS + round(hours * _HOUR_NS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A table of two runs; step 1 of the first run has got a score a day later."""
    first = [root("1", step=1, start_ns=at(0)), row("1", "b", "a1", step=1, start_ns=at(0.1))]
    later = [root("2", step=2, start_ns=at(1)), root("5", step=None, start_ns=at(0.5))]
    other = [root("3", run_id="it's", step=1, start_ns=at(2)), root("4", run_id=None, start_ns=at(2))]
    late = [score("9", "c", 1.0, step=1, start_ns=at(24), score_by="identity")]
    return written(tmp_path / "table", [*first, *other], later, late)


def remaining(store: Store) -> set[int]:
    return {int(each["trace_id"]) for each in all_rows(store.location.uri)}


def pruned(store: Store, choice: pruning.Choice) -> set[int]:
    """Prune as previewed, check that the other rows are as before, and return the traces that are left."""
    before = all_rows(store.location.uri)
    expected, left = pruning.preview(store, choice)
    assert all_rows(store.location.uri) == before
    gone = pruning.prune(store, choice, 0)
    assert gone == expected
    after = all_rows(store.location.uri)
    assert [each for each in before if int(each["trace_id"]) in remaining(store)] == after
    assert sum(share.rows for share in left) == len(after)
    assert sum(share.rows for share in gone) == len(before) - len(after)
    return remaining(store)


@pytest.mark.parametrize("prepare", [lambda _: None, lambda store: compaction.compact(store, 0)])
@pytest.mark.parametrize(
    ("choice", "left"),
    [
        (pruning.of_runs(["run-1"]), {3, 4}),
        (pruning.of_runs(["it's", "run-1"]), {4}),
        (pruning.older_than(at(0)), {1, 2, 3, 4, 5, 9}),
        (pruning.older_than(at(1.5)), {1, 3, 4, 9}),
        (pruning.older_than(at(3)), {1, 9}),
        (pruning.older_than(at(25)), set()),
        (pruning.beyond(0), set()),
        (pruning.beyond(10**9), {1, 2, 3, 4, 5, 9}),
    ],
)
def test_whole_steps_go(
    store: Store, prepare: Callable[[Store], object], choice: pruning.Choice, left: set[int]
) -> None:
    """A step is as old as its newest span, a score that was given later included."""
    prepare(store)
    assert pruned(store, choice) == left


def test_oldest_steps_go_until_the_rest_fits(store: Store) -> None:
    """The size of a step is its rows' part of the files."""
    shares, _ = pruning.preview(store, pruning.beyond(0))
    total = sum(share.size for share in shares)
    _, left = pruning.preview(store, pruning.beyond(total - 1))
    assert sum(share.size for share in left) < total
    assert pruned(store, pruning.beyond(total - 1)) == {1, 2, 3, 4, 9}


def test_pruning_counts_the_trajectories_that_the_views_have(store: Store) -> None:
    """What lies outside is none, a running one is one, and so is one that was delivered twice."""
    twice = root("7", start_ns=at(1))
    written(Path(store.location.uri), [root("6", validate=None, start_ns=at(1)), row("8", "b", "a8"), twice])
    written(Path(store.location.uri), [twice])
    shares, _ = pruning.preview(store, pruning.beyond(0))
    (counted,) = asked(store, "SELECT count(*) AS number FROM trajectories")
    assert sum(share.trajectories for share in shares) == counted["number"]


def test_unknown_run_is_named(store: Store) -> None:
    """Nothing is removed."""
    before = all_rows(store.location.uri)
    with pytest.raises(TableError, match=r"There is no run 'run-2' in the table\. Did you mean 'run-1'\?"):
        pruning.prune(store, pruning.of_runs(["run-1", "run-2"]), 0)
    assert all_rows(store.location.uri) == before


def test_files_of_removed_rows_go_after_the_retention(store: Store) -> None:
    """A pruning without retention leaves only the files of the table."""
    path = Path(store.location.uri)
    pruning.prune(store, pruning.of_runs(["run-1"]), 24)
    assert len(list(path.glob("*.parquet"))) == 3
    pruning.prune(store, pruning.older_than(0), 0)
    assert list(path.glob("*.parquet")) == []
    assert remaining(store) == {3, 4}


def test_trajectory_goes_as_a_whole(tmp_path: Path) -> None:
    """A trajectory inside that names another step, and a score by id, which names none, go with it."""
    inside = {"kind": "AGENT", "step": 2}
    by_id = {"step": None, "sample_index": None, "rollout_n": None, "validate": None}
    of_both = [
        each
        for trace, step in (("1", 1), ("2", 3))
        for each in (
            root(trace, step=step, start_ns=at(step)),
            row(trace, f"b{trace}", f"a{trace}", **inside, start_ns=at(step)),
            score(trace, f"c{trace}", 1.0, **by_id, start_ns=at(step)),
        )
    ]
    judged = score("1", "d", 0.5, **{**by_id, "run_id": "judge"}, start_ns=at(1))
    store = written(tmp_path / "table", [*of_both, judged, root("3", step=2, start_ns=at(2))])
    assert pruned(store, pruning.older_than(at(1.5))) == {2, 3}
    assert pruned(store, pruning.older_than(at(2.5))) == {2}
    assert [each["span_id"][-2:] for each in all_rows(store.location.uri)] == ["a2", "b2", "c2"]


def test_step_is_as_old_as_a_score_by_id_of_it(tmp_path: Path) -> None:
    """A trainer that keeps the ids of trajectories scores them in another process, which knows no step."""
    late = score("1", "c", 1.0, step=None, validate=None, start_ns=at(24))
    store = written(tmp_path / "table", [root("1", start_ns=at(0)), root("2", step=2, start_ns=at(1)), late])
    assert pruned(store, pruning.older_than(at(3))) == {1}
    assert pruned(store, pruning.older_than(at(25))) == set()
