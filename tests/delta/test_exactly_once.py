"""A table has each recorded span once, whatever dies: counts, ids and values."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field, QueryBuilder, Schema
from deltalake.schema import PrimitiveType

from otel_rollout import settings
from otel_rollout.account.ledger_reader import FILE, FILE_SUFFIXES
from otel_rollout.spool import layout
from tests.delta.reading import counted, expected_rows, rows_in
from tests.faults.forwarding import forward, nobody_forwards, node_directory, record_and_die
from tests.faults.inside import DEATHS, DEATHS_COMMITTING
from tests.faults.job import PATH, Job
from tests.waiting import wait_for


def assert_exact(table: Path, spool: Path, count: int) -> None:
    """Check that a table has the rows of the spool's lines, each once."""
    expected = counted(expected_rows(spool))
    assert sum(expected.values()) == count
    assert counted(rows_in(table)) == expected


def sizes_of_commits(table: Path) -> list[int]:
    """Return the number of added rows of each commit, the newest first."""
    history = DeltaTable(str(table)).history()
    return [entry["operationMetrics"]["num_added_rows"] for entry in history if entry["operation"] == "WRITE"]


def test_forwarder_killed_at_every_point_of_a_commit_writes_each_row_once(
    variables: dict[str, str], table: Path, tmp_path: Path
) -> None:
    """SIGKILL comes around notes, questions, the table's files and cursor writes."""
    node_dir = node_directory(variables)
    recorded = record_and_die(variables, node_dir, count=60)
    report = forward(variables, node_dir, [*DEATHS_COMMITTING, *DEATHS[1:4]])
    count = report.exporters["delta"]
    assert (report.recorded, count.delivered, report.lost) == (len(recorded), len(recorded), 0)
    assert_exact(table, tmp_path / "spool", len(recorded))
    assert max(sizes_of_commits(table)) <= 7
    assert table.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in table.rglob("*"))


def test_forwarder_killed_again_and_again_at_one_point_writes_each_row_once(
    variables: dict[str, str], table: Path, tmp_path: Path
) -> None:
    """Four forwarders in a row die inside a commit, or right after it."""
    node_dir = node_directory(variables)
    recorded = record_and_die(variables, node_dir, count=30)  # some commits end before the death
    for point in ("after the rows are written", "after the rows are written", *["after the commit"] * 2):
        forward_until_death(variables, node_dir, point)
    forward(variables, node_dir)
    assert_exact(table, tmp_path / "spool", len(recorded))


def forward_until_death(variables: dict[str, str], node_dir: Path, point: str) -> None:
    """Run a forwarder that dies at a point."""
    deaths = node_dir.parent.parent.parent / "deaths"
    deaths.mkdir(exist_ok=True)
    (deaths / point).touch()
    assert start_forwarder({**variables, "OTEL_TEST_DEATHS": str(deaths)}, node_dir).wait(300) < 0


def start_forwarder(variables: dict[str, str], node_dir: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "otel_rollout.forwarder", str(node_dir)]
    environment = {**variables, "PYTHONPATH": PATH, settings.CONFIG_VARIABLE: "{}"}
    with open(node_dir / "test.log", "ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def test_lost_ledger_doubles_rows_that_span_ids_fold(
    variables: dict[str, str], table: Path, tmp_path: Path
) -> None:
    """Without ledger, what is still in segments is written again by another writer, with the same ids."""
    node_dir = node_directory(variables)
    recorded = record_and_die(variables, node_dir, count=10)
    forward_until_death(variables, node_dir, "after the commit")
    for suffix in FILE_SUFFIXES:
        (node_dir / (FILE + suffix)).unlink(missing_ok=True)
    forward(variables, node_dir)
    found = counted(rows_in(table))
    assert set(found) == set(counted(expected_rows(tmp_path / "spool")))
    assert sorted(set(found.values())) == [1, 2]
    assert sum(found.values()) == len(recorded) + 7
    query = "SELECT count(*) AS n, count(DISTINCT span_id) AS spans FROM spans"
    counts = QueryBuilder().register("spans", DeltaTable(str(table))).execute(query).read_all()
    assert counts.column("spans").to_pylist() == [len(recorded)]


def test_eight_forwarders_write_one_table_at_once(
    variables: dict[str, str], table: Path, tmp_path: Path
) -> None:
    """Eight node directories have a forwarder each; none has begun the table, and one is killed."""
    node_dirs, recorded = [], 0
    for number in range(8):
        node_dirs.append(node_directory(variables, f"node-{number}"))
        recorded += len(record_and_die(variables, node_dirs[-1], count=15))
    forwarders = [start_forwarder(variables, node_dir) for node_dir in node_dirs]
    wait_for(lambda: len(sizes_of_commits(table)) > 8 if is_table(table) else False, 240)
    forwarders[0].kill()
    assert [forwarder.wait(300) for forwarder in forwarders[1:]] == [0] * 7
    forwarders[0].wait(10)
    assert start_forwarder(variables, node_dirs[0]).wait(300) == 0
    assert_exact(table, tmp_path / "spool", recorded)


def is_table(path: Path) -> bool:
    return (path / "_delta_log" / f"{0:020}.json").exists()


def test_table_removed_during_delivery_is_begun_anew(
    variables: dict[str, str], table: Path, tmp_path: Path
) -> None:
    """The forwarder says so, and later spans are in the new table."""
    node_dir = node_directory(variables)
    with Job(variables) as job:
        job.record("first", 3)
        wait_for(lambda: job.ask("status")["exporters"]["delta"]["delivered"] == 4)
        shutil.rmtree(table)
        second = job.record("second", 5)
        assert job.ask("shutdown", 120)["lost"] == 0
    assert {row["name"] for row in rows_in(table)} == set(second)
    said = f"the table at {table} was removed; it is begun anew"
    assert said in (node_dir / layout.FORWARDER_LOG).read_text()


@pytest.mark.parametrize("has_more", [False, True])
def test_forwarders_of_several_versions_write_one_table(
    variables: dict[str, str], table: Path, tmp_path: Path, has_more: bool
) -> None:
    """A column that the table lacks is added; a column that the forwarder lacks stays empty."""
    older = [*COLUMNS_OF_OLDER, *(["new"] if has_more else [])]
    begin_older(table, older)
    node_dir = node_directory(variables)
    recorded = record_and_die(variables, node_dir, count=10)
    forward(variables, node_dir)
    assert_exact(table, tmp_path / "spool", len(recorded))
    names = [field.name for field in DeltaTable(str(table)).schema().fields]
    assert names[: len(older)] == older
    assert len(names) == len(set(names)) >= 53
    if has_more:
        assert [row["new"] for row in rows_in(table, ["new"])] == [None] * len(recorded)


COLUMNS_OF_OLDER = ("trace_id", "span_id", "name", "step")


def begin_older(table: Path, names: Sequence[str]) -> None:
    """Begin a table as a forwarder with these columns would."""
    types = {"step": "long", "new": "double"}
    fields = [Field(name, PrimitiveType(types.get(name, "string"))) for name in names]
    properties = {"rollout.schema_version": "1"}
    os.makedirs(table)
    DeltaTable.create(str(table), Schema(fields), configuration=properties, raise_if_key_not_exists=False)


def test_sampled_out_lines_are_not_in_the_table(
    variables: dict[str, str], table: Path, tmp_path: Path
) -> None:
    """Tail sampling decides which rows there are."""
    variables |= {"OTEL_ROLLOUT_OUTCOME_KEEP": "errors"}
    node_dir = node_directory(variables)
    with nobody_forwards(node_dir), Job(variables) as job:
        job.record("good", 3)
        job.ask("open", "unended")  # ends as an error
    report = forward(variables, node_dir, ["after the commit"])
    assert {row["name"] for row in rows_in(table)} == {"unended", "unended.0"}
    assert report.exporters["delta"].sampled_out == 4
    assert not layout.segments(node_dir) or report.lost == 0
