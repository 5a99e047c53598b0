"""Merged trajectory rows are those of the view over all spans, whatever happens to a table."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, example, given, settings
from typer.testing import CliRunner

from otel_rollout.cli import app
from otel_rollout.table import compaction, pruning, trajectory_store, views
from otel_rollout.table.location import location_of
from otel_rollout.table.query import Engine, dicts_of
from otel_rollout.table.rows import batch_of
from otel_rollout.table.store import Store
from otel_rollout.table.verification import differences, of_sample
from tests.table import stored_model
from tests.table.stored_histories import Compact, Deliver, Operation, Prune, Row, histories
from tests.table.tables import root, row, score

_IS_NIGHTLY = settings.default is not None and settings.default.max_examples >= 200
_IN_MEMORY = settings(max_examples=20_000 if _IS_NIGHTLY else 400)
_ELSEWHERE = root("2", run_id="run-2", step=7)
_INSIDE = row("3", "e3", "a3", run_id="run-2", step=9, kind="AGENT")


def _by_identity(**columns: Any) -> Row:
    return score("f", "f", 0.75, score_by="identity", is_root=False, parent_span_id=None, **columns)


def _history(first: list[Row], last: list[Row]) -> list[Operation]:
    return [Deliver(first), Compact([], False), Deliver(last)]


EXAMPLES = (
    _history([root("1"), _by_identity(run_id="run-2")], [_ELSEWHERE]),
    _history([root("1"), _ELSEWHERE], [_by_identity(run_id="run-2")]),
    _history([root("1"), _INSIDE, _by_identity(run_id="run-2")], [root("3", step=8)]),
)
"""A run that scored trajectories of another one gets its first, has one that is stored, or loses its last."""
HISTORY = [
    *EXAMPLES[0],
    *EXAMPLES[2][2:],
    Compact([], True),
    Compact([score("1", "f", 0.5)], False),
    Prune("run-2", 7, False),
]
"""Stored rows are merged with recent ones, replaced, and left out after a kill and a pruning."""


@_IN_MEMORY
@given(histories)
@example(EXAMPLES[0])
@example(EXAMPLES[1])
@example(EXAMPLES[2])
def test_rules_of_merging_give_the_rows_of_all_spans(history: list[Operation]) -> None:
    """The rules alone, in plain Python: deliveries in any order, repeats, late scores, retries, kills.

    In the examples, only a run without trajectories scores those of others.
    """
    table = stored_model.Table()
    for operation in history:
        table.do(operation)
        assert table.merged() == table.expected()


_ON_DISK = settings(
    max_examples=300 if _IS_NIGHTLY else 3, suppress_health_check=list(HealthCheck), deadline=None
)
_SMALLEST_PIECES = mock.patch.object(trajectory_store, "_PIECE_SPANS", 1)
_KEPT = frozenset(views.order()) - views.WIDE
"""Views that are planned once: that is faster."""


class RealTable:
    """A table in a directory or an object store, to which the operations of a history happen.

    Args:
        uri: where to write it.
    """

    def __init__(self, uri: str) -> None:
        self.store = Store(location_of(uri))
        self._numbers = itertools.count()

    def do(self, operation: Operation) -> None:
        """Carry out an operation."""
        if isinstance(operation, Deliver):
            self._append(operation.rows)
            return
        module = compaction if isinstance(operation, Compact) else pruning
        store_trajectories = compaction.store_trajectories

        def after_the_files(*arguments: Any) -> None:
            if isinstance(operation, Compact) and operation.meanwhile:
                self._append(operation.meanwhile)
            if not operation.is_killed:
                store_trajectories(*arguments)

        with mock.patch.object(module, "store_trajectories", after_the_files):
            if isinstance(operation, Compact):
                compaction.compact(self.store, 0, lambda _: None)
            else:
                unit = pruning.Unit(operation.run_id, operation.step)
                pruning.prune(self.store, lambda shares: {unit} & {share.unit for share in shares}, 0)

    def _append(self, rows: list[Row]) -> None:
        self.store.append([batch_of(rows)], "tests", next(self._numbers))

    def check(self) -> bool:
        """Compare the views with those over all spans; return whether stored rows were read."""
        table = self.store.open()
        merged, expected = Engine(table), Engine(table, keep=_KEPT, may_merge=False)
        assert list(differences(merged, expected)) == []
        unresolved = "SELECT * FROM unresolved_scores ORDER BY trace_id"
        assert dicts_of(merged.run(unresolved)) == dicts_of(expected.run(unresolved))
        return merged.is_merged


def check_history(uri: str, history: list[Operation]) -> None:
    """Let a history happen to a table, in which the most rows may be recent, and check it all the time.

    Rows that are not merged are stored in pieces, the smallest that there may be.
    """
    with mock.patch.object(trajectory_store, "_MOST_OPEN", 100), _SMALLEST_PIECES:
        table = RealTable(uri)
        for operation in history:
            table.do(operation)
            table.check()


@_ON_DISK
@given(histories)
@example(HISTORY)
def test_views_of_a_table_are_those_of_all_spans(history: list[Operation]) -> None:
    """The same histories happen to a table in a directory."""
    with TemporaryDirectory() as directory:
        check_history(str(Path(directory) / "table"), history)


@pytest.fixture
def table(tmp_path: Path) -> RealTable:
    """A compacted table of nine trajectories in steps of their own."""
    made = RealTable(str(tmp_path / "table"))
    made.do(Deliver([root(f"{number}", step=number) for number in range(1, 10)]))
    made.do(Compact([], False))
    return made


def test_trajectory_with_a_late_score_is_computed_anew(table: RealTable) -> None:
    """The others are read as they are stored."""
    table.do(Deliver([score("3", "f", 0.5, step=3)]))
    engine = Engine(table.store.open())
    with mock.patch.object(trajectory_store, "_MOST_OPEN", 0.7):  # a file of one row is no small part here
        (found,) = dicts_of(engine.run("SELECT step, reward FROM trajectories WHERE reward IS NOT NULL"))
    assert (engine.is_merged, found) == (True, {"step": 3, "reward": 0.5})
    assert engine.run("SELECT * FROM open_traces").num_rows == 1


def _in_pieces(table: RealTable, directory: Path) -> list[list[str]]:
    """Return the ends of the ids of the traces of each piece."""
    ask = Engine(table.store.open(), may_merge=False).run
    found = []
    for piece in trajectory_store.pieces(ask, str(directory / "units")):
        trajectory_store.opened(ask, piece)
        found.append(sorted(row["trace_id"][-1] for row in dicts_of(ask("SELECT trace_id FROM open_traces"))))
    return found


@_SMALLEST_PIECES
def test_rows_of_whole_steps_are_computed_together(table: RealTable, tmp_path: Path) -> None:
    """So memory is bounded. A trajectory inside that names another step joins all steps between both."""
    table.do(Deliver([row("3", "e3", "a3", step=5, kind="AGENT"), root("b", step=None)]))
    assert _in_pieces(table, tmp_path) == [["b"], ["1"], ["2"], ["3", "4", "5"], ["6"], ["7"], ["8"], ["9"]]


@_SMALLEST_PIECES
def test_groups_of_a_step_with_many_spans_are_computed_one_after_the_other(tmp_path: Path) -> None:
    """A score by identity is in the piece of its group, where it may fit a trajectory."""
    table = RealTable(str(tmp_path / "table"))
    groups = [{"sample_index": sample, "rollout_n": number} for sample in "567" for number in range(2)]
    rows = [root(f"{trace}", **columns) for trace, columns in enumerate(groups, 1)]
    table.do(Deliver([*rows, _by_identity(sample_index="6", rollout_n=1)]))
    assert sorted(_in_pieces(table, tmp_path)) == [["1", "2"], ["3", "4", "f"], ["5", "6"]]
    table.do(Compact([], False))
    assert table.check()


def test_stored_rows_do_not_count_for_other_definitions(table: RealTable) -> None:
    """A software of another version may define a figure otherwise."""
    assert table.check()
    with mock.patch.object(trajectory_store, "_definitions", return_value="other"):
        assert not table.check()


def test_stored_rows_do_not_count_without_the_files_that_they_are_of(table: RealTable) -> None:
    """Another program, or a compaction that was killed, has replaced the files."""
    table.do(Deliver([root("b", step=11)]))
    table.do(Compact([], True))
    assert not table.check()
    table.do(Compact([], False))
    assert table.check()


@pytest.mark.parametrize(
    ("files", "damage"),
    [
        ("*.json", lambda path: path.write_text("{")),
        ("*.parquet", Path.unlink),
        ("*.parquet", lambda path: path.write_bytes(bytes(path.stat().st_size))),
    ],
    ids=["log", "missing", "zeros"],
)
def test_spans_answer_if_the_stored_rows_cannot_be_read(
    table: RealTable, files: str, damage: Callable[[Path], object]
) -> None:
    """A damaged log, or a file that is gone or that a power failure has emptied, costs speed alone."""
    for each in (Path(table.store.location.uri) / trajectory_store.DIRECTORY).rglob(files):
        damage(each)
    assert not table.check()


def test_only_newest_entries_of_the_log_are_read(table: RealTable) -> None:
    """A table that is compacted each half hour has thousands, which a query would fetch from its store."""
    table.do(Compact([], False))
    directory = Path(table.store.location.uri) / trajectory_store.DIRECTORY
    DeltaTable(str(directory)).create_checkpoint()
    (directory / "_delta_log/00000000000000000000.json").write_text("{")
    with mock.patch.object(trajectory_store, "_SEARCHED", 3):
        assert table.check()
    with mock.patch.object(trajectory_store, "_VACUUM", ""):  # none of them has written rows
        assert not table.check()


def test_compaction_stores_rows_anew_if_stored_ones_are_damaged(table: RealTable) -> None:
    """Damage of one column shows only when the rows are copied; the spans have all that they say."""
    stored = Engine.trace_rows

    def damaged(engine: Engine, directory: str) -> Any:
        rows = stored(engine, directory)
        if engine.is_merged:
            raise OSError("a page of a column is damaged")
        return rows

    table.do(Deliver([score("3", "f", 0.5, step=3)]))
    with mock.patch.object(trajectory_store, "_MOST_OPEN", 1):
        assert table.check()
        with mock.patch.object(Engine, "trace_rows", damaged):
            compaction.compact(table.store, 0, lambda _: None)
    assert table.check()


def test_rows_that_cannot_be_stored_do_not_fail_a_compaction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The files are merged, a warning says what is missing, and the spans answer."""
    made = RealTable(str(tmp_path / "table"))
    made.do(Deliver([root("1")]))
    made.do(Deliver([root("2", step=2)]))
    (tmp_path / "table" / trajectory_store.DIRECTORY).write_text("a file in the place of the directory")
    made.do(Compact([], False))
    assert "what trajectories came to is not stored: " in caplog.text
    assert len(list((tmp_path / "table/compacted").iterdir())) == 1
    assert not made.check()


def test_table_with_many_recent_rows_is_read_as_without_stored_ones(table: RealTable) -> None:
    """To compute most rows and merge them would take longer than to compute all."""
    table.do(Deliver([root(f"{number:x}", step=number) for number in range(10, 40)]))
    assert not table.check()


def test_verification_names_each_difference(table: RealTable) -> None:
    """A figure that is stored wrongly is named with both values, and so is a row that is missing."""
    uri = table.store.location.uri
    opened = table.store.open()
    changed = Engine(opened).run(
        "SELECT * REPLACE (CASE WHEN step = 3 THEN 7 ELSE turns END AS turns) FROM trace_rows "
        "WHERE step IS NULL OR step <> 5"
    )
    trajectory_store.store_rows(table.store, changed, opened.get_add_actions()["path"].to_pylist(), 0)
    third, fifth = "3".rjust(32, "0"), "5".rjust(32, "0")
    engines = Engine(opened), Engine(opened, may_merge=False)
    assert list(differences(*engines)) == [(third, "turns", 7, 0), (fifth, "", False, True)]
    told = CliRunner().invoke(app, ["table", "verify", uri])
    assert (told.exit_code, told.output.splitlines()) == (
        1,
        [
            f"{third} turns: stored 7, recomputed 0",
            f"{fifth}: a row is not stored",
            f"2 differences in {uri}.",
        ],
    )
    table.do(Deliver([root("b", step=11)]))
    table.do(Compact([], True))
    told = CliRunner().invoke(app, ["table", "verify", uri])
    assert (told.exit_code, told.output) == (0, f"No difference in {uri}.\n")


def test_verification_of_a_sample_computes_the_steps_of_some_trajectories(table: RealTable) -> None:
    """Each difference of those that are drawn is named; a large table is not computed as a whole."""
    uri, opened = table.store.location.uri, table.store.open()
    changed = Engine(opened).run("SELECT * REPLACE (7 AS turns) FROM trace_rows")
    trajectory_store.store_rows(table.store, changed, opened.get_add_actions()["path"].to_pylist(), 0)
    with mock.patch.object(trajectory_store, "_MOST_OPEN", 0.4):
        found = list(of_sample(opened, 3))
        told = CliRunner().invoke(app, ["table", "verify", uri, "--sample", "2"])
    assert [(each.column, each.stored, each.recomputed) for each in found] == [("turns", 7, 0)] * 3
    assert told.output.endswith(f"2 differences in {uri}.\n")
