"""Errors of queries are one sentence, and name what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_rollout.table import views
from otel_rollout.table.query import Engine
from otel_rollout.table.select import QueryError
from otel_rollout.table.store import Store
from tests.table.tables import root, score, selected, written


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(
        written(tmp_path_factory.mktemp("tables") / "table", [root("1"), score("1", "b", 0.5)]).open()
    )


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT * FROM trajectores", "There is no view 'trajectores'. Did you mean 'trajectories'? Views: "),
        (
            "SELECT rewrd FROM trajectories",
            "There is no column 'rewrd'. Did you mean 'reward'? Columns: trace_id",
        ),
        ("SELECT t.rewrd FROM trajectories AS t", "There is no column 'rewrd'. Did you mean 'reward'?"),
        ("SELECT avg(reward FROM steps", "The query has a parenthesis that does not end."),
        ("SELECT 'a FROM steps", "The query has a quote that does not end, near"),
        ("SELECT step\nFRM steps", "The SQL is wrong: "),
        ("SELECT no_function(1)", "The query failed: Invalid function 'no_function'."),
        ("SELECT * FROM steps WHERE reward_mean > 'much'", "Cannot cast string 'much'"),
        ("SELCT 1", "Only a SELECT can be run, and this begins with 'SELCT 1': nothing was done."),
    ],
)
def test_wrong_query_is_explained_in_one_line(engine: Engine, sql: str, words: str) -> None:
    """The sentence names the mistake, and a name that exists."""
    with pytest.raises(QueryError) as raised:
        selected(engine, sql)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_names_are_found_in_any_case(engine: Engine) -> None:
    """SQL's keywords and names are not case-sensitive."""
    assert selected(engine, "SELECT PATH FROM Trajectories").column_names == ["path"]


def test_first_rows_end_a_query(engine: Engine) -> None:
    """A page of a large result is read without the rest."""
    found = engine.run("SELECT value FROM range(100000) ORDER BY value", 3)
    assert found["value"].to_pylist() == [0, 1, 2]


def test_every_view_has_a_file(engine: Engine) -> None:
    """Each view that users see is shipped, and can be read by itself."""
    for name in views.NAMES:
        assert views.sql_of(name)
        assert selected(engine, f"SELECT * FROM {name}").num_columns > 5


def test_column_that_an_older_table_lacks_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views of newer software read tables of older software."""
    from otel_rollout.table import schema

    newer = (*schema.COLUMNS, schema.Column("mood", "text", "A column of the future."))
    store: Store = written(tmp_path / "table", [root("1")])
    opened = store.open()
    monkeypatch.setattr(schema, "COLUMNS", newer)
    assert selected(Engine(opened), "SELECT mood FROM spans")["mood"].to_pylist() == [None]
