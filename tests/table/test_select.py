"""Only one query runs: nothing that writes, copies or reads a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rollout.table.query import Engine
from otel_rollout.table.select import QueryError, expression, query
from otel_rollout.table.store import Store
from tests.table.tables import root, selected, written

TARGET = "/TARGET/"
"""Stands for a directory of the test, in which no statement may leave a file."""
HOSTILE = [
    f"COPY spans TO '{TARGET}x.csv' STORED AS CSV",
    f"COPY (SELECT 1) TO '{TARGET}x.parquet'",
    f"copy spans to '{TARGET}x.json'",
    f"/* SELECT */ COPY spans TO '{TARGET}x.csv'",
    f"-- SELECT\nCOPY spans TO '{TARGET}x.csv'",
    f"SELECT 1; COPY spans TO '{TARGET}x.csv'",
    f"SELECT 1) ; COPY spans TO '{TARGET}x.csv'; SELECT * FROM (SELECT 1",
    f"SELECT 1) TO '{TARGET}x.csv' STORED AS CSV --",
    f"SELECT 1)) TO '{TARGET}x.csv' --",
    f"SELECT * FROM (COPY spans TO '{TARGET}x.csv')",
    f"WITH a AS (COPY spans TO '{TARGET}x.csv') SELECT * FROM a",
    f"EXPLAIN ANALYZE COPY spans TO '{TARGET}x.csv'",
    f"SELECT * FROM (EXPLAIN ANALYZE COPY spans TO '{TARGET}x.csv')",
    f"CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '{TARGET}secret.csv'",
    f"CREATE TABLE x AS SELECT * FROM '{TARGET}secret.csv'",
    "CREATE VIEW x AS SELECT 1",
    "CREATE TABLE x AS SELECT 1",
    "DROP VIEW spans",
    "DROP TABLE stored_rows",
    "SELECT * INTO x FROM spans",
    "SELECT * FROM (SELECT 1 INTO x)",
    "SELECT (SELECT 1 INTO x)",
    "WITH a AS (SELECT 1 INTO x) SELECT * FROM a",
    "INSERT INTO stored_rows SELECT * FROM stored_rows",
    "WITH a AS (SELECT * FROM stored_rows) INSERT INTO stored_rows SELECT * FROM a",
    "SELECT * FROM (INSERT INTO stored_rows SELECT * FROM stored_rows)",
    "WITH a AS (SELECT 1) UPDATE stored_rows SET step = 2",
    "WITH a AS (SELECT 1) DELETE FROM stored_rows",
    "DELETE FROM stored_rows",
    "UPDATE stored_rows SET step = 2",
    "TRUNCATE TABLE stored_rows",
    "MERGE INTO stored_rows USING spans ON true WHEN MATCHED THEN DELETE",
    "SET datafusion.execution.batch_size = 1",
    "PREPARE x AS SELECT 1",
    "SHOW TABLES",
    "DESCRIBE spans",
    "BEGIN",
    f"SELECT * FROM '{TARGET}secret.csv'",
    f'SELECT * FROM "{TARGET}secret.csv"',
    f"SELECT * FROM '{TARGET}'",
    f"SELECT * FROM read_csv('{TARGET}secret.csv')",
    f"SELECT * FROM parquet_metadata('{TARGET}secret.csv')",
    f"SELECT * FROM 'file://{TARGET}secret.csv'",
    f"SELECT * FROM delta_scan('{TARGET}')",
    f"SELECT read_file('{TARGET}secret.csv')",
    f"SELECT E'\\') TO ''{TARGET}x.csv'' --'",
    f"SELECT 'a' /* ' */) TO '{TARGET}x.csv' STORED AS CSV --",
    f"SELECT $$)$$) TO '{TARGET}x.csv' --",
    f"SELECT `)` TO '{TARGET}x.csv'",
    f"SELECT 1 /* /* */ ) TO '{TARGET}x.csv' -- */",
    "",
    ";",
    "   ",
    "SELECT 1\0",
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return written(tmp_path_factory.mktemp("tables") / "table", [root("1")])


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "secret.csv").write_text("name\nswordfish\n")
    yield tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


@pytest.mark.parametrize("sql", HOSTILE)
def test_statement_that_is_no_query_is_refused(store: Store, target: Path, sql: str) -> None:
    """Neither a select, nor a Parquet file of one, nor a condition writes, copies or reads a file."""
    hostile = sql.replace(TARGET, f"{target}/")
    engine = Engine(store.open())
    before = _files(store)
    with pytest.raises(QueryError) as refused:
        selected(engine, hostile)
    assert "swordfish" not in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(QueryError):
        engine.write_parquet(hostile, target / "own.parquet")
    with pytest.raises(QueryError):
        selected(engine, f"SELECT * FROM trajectories WHERE {expression(hostile)}")
    assert _files(store) == before
    assert selected(engine, "SELECT trace_id FROM spans").num_rows == 1
    for name in ("x", "y"):
        with pytest.raises(QueryError, match="There is no view"):
            selected(engine, f"SELECT * FROM {name}")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'COPY x TO y; (' AS a",
        'SELECT 1 AS "into"',
        "SELECT 1 AS a -- COPY (",
        "SELECT /* ( */ 1 AS a;",
        "WITH a AS (SELECT 1 AS b) SELECT b FROM a",
        "(SELECT 1 AS a) UNION ALL (SELECT 2)",
        "VALUES (1), (2)",
        "select 'it''s' as a",
    ],
)
def test_query_with_odd_text_runs(store: Store, sql: str) -> None:
    """Words in quotes and comments are text."""
    assert selected(Engine(store.open()), sql).num_rows


def test_order_of_a_query_is_kept(store: Store) -> None:
    """The check does not change what runs."""
    found = selected(Engine(store.open()), "SELECT value FROM range(1000) ORDER BY value DESC")
    assert found["value"].to_pylist() == list(reversed(range(1000)))


def test_semicolon_at_the_end_is_removed() -> None:
    """People end statements with it."""
    assert query(" SELECT 1 ; ") == "SELECT 1"
    assert query("SELECT 1;; -- the end") == "SELECT 1"
    assert query("SELECT ';'") == "SELECT ';'"
    with pytest.raises(QueryError, match="several statements"):
        query("SELECT 1; -- one\nSELECT 2")


def _files(store: Store) -> list[str]:
    assert store.location.path is not None
    return sorted(str(path) for path in store.location.path.rglob("*"))
