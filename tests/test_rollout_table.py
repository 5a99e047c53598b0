"""A rollout table in Python: rows of views, SQL, trajectories, and DataFrames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pandas
import polars
import pytest

import otel_rollout
from otel_rollout.rollout_table import RolloutTable
from otel_rollout.table.errors import TableError
from otel_rollout.table.select import QueryError
from tests.table.generated_table import Shape
from tests.table.tables import generated, root, score, written


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> RolloutTable:
    path = tmp_path_factory.mktemp("tables") / "table"
    generated(path, Shape(32, per_step=16))
    return otel_rollout.open_table(str(path))


def test_rows_are_filtered_sorted_and_cut(table: RolloutTable) -> None:
    """Filters add up, and the object that they were added to stays as it was."""
    every = table.trajectories
    found = every.filter(step="2", reward=">0.1").where("rollout_n < 4").sort("-reward").limit(3)
    rewards = [each["reward"] for each in found.select("path", "reward")]
    assert rewards == sorted(rewards, reverse=True)
    assert len(found) == 3
    assert len(every) == 32
    assert found.select("path").columns == ["path"]


def test_what_follows_a_limit_applies_to_the_first_rows(table: RolloutTable) -> None:
    """The three best are sorted and filtered, not cut again from all rows."""
    best = table.trajectories.sort("-reward", "trace_id").limit(3)
    wanted = best.dicts()
    assert best.sort("reward", "-trace_id").dicts() == wanted[::-1]
    assert best.filter(trace_id=wanted[1]["trace_id"]).dicts() == [wanted[1]]
    assert best.where("rollout_n >= 0").select("path").dicts() == [{"path": each["path"]} for each in wanted]
    assert best.limit(5).dicts() == wanted
    assert best.limit(2).dicts() == wanted[:2]
    assert best.select("path").limit(1).filter(validate=False).columns == ["path"]
    assert [each["a"] for each in table.sql("SELECT 1 AS a UNION ALL SELECT 1").limit(1).where("a = 1")] == [
        1
    ]


def test_values_are_compared_in_the_columns_type(table: RolloutTable) -> None:
    """A row of the dataset is a text in the table, whatever the program calls it."""
    expected = len(table.trajectories.filter(sample_index="1"))
    assert expected
    assert len(table.trajectories.filter(sample_index=1)) == expected
    frame = table.trajectories.limit(1).pandas()
    assert len(table.trajectories.filter(step=frame.step[0], rollout_n=frame.rollout_n[0])) == 2
    with pytest.raises(QueryError, match="reward=nan cannot be compared with a column of type Float64"):
        table.trajectories.filter(reward=float("nan"))


def test_row_with_one_trajectory_needs_no_rollout(tmp_path: Path) -> None:
    """Rollouts are numbered only where a row has several."""
    written(tmp_path / "table", [root("1", rollout_n=None), root("2", sample_index="8", rollout_n=0)])
    table = otel_rollout.open_table(tmp_path / "table")
    assert table.trajectory(1, 7).trace_id.endswith("1")
    assert table.trajectory(1, 8).trace_id.endswith("2")


def test_interval_is_refused_before_it_is_read(table: RolloutTable) -> None:
    """Arrow's library has no Python value for it."""
    rows = table.sql("SELECT INTERVAL '1 day' AS waited")
    with pytest.raises(QueryError, match=r"^Column 'waited' is an interval: write CAST"):
        rows.dicts()


@pytest.mark.parametrize("uri", [None, 3, "", b"x"])
def test_address_of_another_type_is_named(uri: Any) -> None:
    """A mistake is no AttributeError inside the package."""
    with pytest.raises(TableError, match=r"^the table's address is .*; expected a directory"):
        otel_rollout.open_table(uri)


def test_every_view_is_an_attribute(table: RolloutTable) -> None:
    """The views of the command line are those of Python."""
    counts = {
        name: len(getattr(table, name))
        for name in ("steps", "groups", "runs", "turns", "tool_calls", "scores")
    }
    assert counts == {"steps": 2, "groups": 4, "runs": 1, "turns": 192, "tool_calls": 192, "scores": 32}


def test_rows_become_frames_of_each_library(table: RolloutTable) -> None:
    """Also a result of SQL, and by Arrow's protocol alone."""
    rows = table.sql("SELECT step, avg(reward) AS reward FROM trajectories GROUP BY step ORDER BY step")
    assert isinstance(rows.pandas(), pandas.DataFrame)
    assert isinstance(rows.polars(), polars.DataFrame)
    assert rows.duckdb().columns == ["step", "reward"]
    assert polars.DataFrame(rows)["step"].to_list() == [1, 2]
    assert [each["step"] for each in rows] == [1, 2]
    assert len(rows.where("step = 2")) == 1


def test_trajectory_has_its_conversation(table: RolloutTable) -> None:
    """By identity, by name and by trace id."""
    found = table.trajectory(1, 0, 3)
    assert [each["role"] for each in found.messages[:3]] == ["user", "assistant", "tool"]
    assert set(found.scores) == {"reward"}
    assert len(found.spans) == 20
    assert table.trajectory("1/0/3").trace_id == found.trace_id
    assert table.trajectory(found.trace_id).trace_id == found.trace_id


def test_score_by_identity_is_in_the_trajectory(tmp_path: Path) -> None:
    """A score that named no trace is shown with the trajectory that it is of."""
    given = score("f", "b", 0.25, score_by="identity", is_root=False, score_comment="judged")
    written(tmp_path / "table", [root("1"), given])
    found = otel_rollout.open_table(str(tmp_path / "table")).trajectory(1, 7, 0)
    assert found.scores == {"reward": 0.25}


def test_notebook_shows_html_without_markup_of_content(tmp_path: Path) -> None:
    """Names of columns and values are escaped; a conversation is in a frame that runs nothing."""
    written(tmp_path / "table", [root("1", error_message="<script>", status="error")])
    table = otel_rollout.open_table(str(tmp_path / "table"))
    shown = table.trajectories.select("error_message")._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown
    assert "<script>" not in table.trajectory(1, 7, 0)._repr_html_()
    assert "run-1" in table._repr_html_()


def test_new_rows_appear_after_a_refresh(tmp_path: Path) -> None:
    """A table is one version until then."""
    store = written(tmp_path / "table", [root("1")])
    table = otel_rollout.open_table(str(tmp_path / "table"))
    assert len(table.trajectories) == 1
    written(tmp_path / "table", [root("2")])
    assert store.open().version() > table.version
    assert len(table.trajectories) == 1
    assert len(table.refresh().trajectories) == 2


def test_single_trajectories_are_of_the_opened_version(tmp_path: Path) -> None:
    """As the views are, until a refresh."""
    written(tmp_path / "table", [root("1")])
    table = otel_rollout.open_table(str(tmp_path / "table"))
    written(tmp_path / "table", [root("2", rollout_n=1)])
    with pytest.raises(TableError, match="There is no trajectory 1/7/1"):
        table.trajectory(1, 7, 1)
    assert table.refresh().trajectory(1, 7, 1).trace_id.endswith("2")


def test_values_of_other_libraries_filter(tmp_path: Path) -> None:
    """Columns of a frame, and a number for a column of text, which ``07`` is not."""
    rows = [root("1"), root("2", sample_index="07"), root("3", sample_index="a/b", step=2)]
    written(tmp_path / "table", rows)
    trajectories = otel_rollout.open_table(str(tmp_path / "table")).trajectories
    assert len(trajectories.filter(step=numpy.int64(1), validate=numpy.bool_(False))) == 2
    assert len(trajectories.filter(seconds=numpy.float64(1))) == 3
    assert len(trajectories.filter(step=numpy.array([1, 2]))) == 3
    assert len(trajectories.filter(step=pandas.Series([2]))) == 1
    assert len(trajectories.filter(sample_index=7)) == 1
    assert len(trajectories.filter(sample_index=[7, "a/b"])) == 2
    for value in (float("nan"), b"7", {"a": 1}, numpy.array([numpy.inf])):
        with pytest.raises(QueryError, match="cannot be compared"):
            trajectories.filter(step=value)


@pytest.mark.parametrize(
    ("value", "steps"),
    [
        (2, "2"),
        (2.0, "2"),
        (1.5, "1.5"),
        (2**70, str(2**70)),
        ("warm-up", "warm-up"),
        ("012", "012"),
        ("1-3", "2"),
        (["warm-up", 2, None], "2 warm-up none"),
        (None, "none"),
        ("-", "none"),
        ([], ""),
    ],
)
def test_steps_are_filtered_as_a_command_filters_them(tmp_path: Path, value: object, steps: str) -> None:
    """A step may be a text or a number that is no integer of 64 bits; None is no step at all."""
    known: list[object] = [2, "warm-up", "012", 1.5, str(2**70), None]
    texts = [{"step": None, "step_text": str(step)} for step in known[1:-1]]
    rows = [{"step": 2, "step_text": None}, *texts, {"step": None, "step_text": None}]
    written(tmp_path / "table", [root(f"{number:x}", **row) for number, row in enumerate(rows, start=1)])
    table = otel_rollout.open_table(str(tmp_path / "table"))
    for view in (table.trajectories, table.steps):
        found = {row["step_text"] or row["step"] or "none" for row in view.filter(step=value)}
        assert found == {int(step) if step == "2" else step for step in steps.split()}


def test_mistakes_are_named(table: RolloutTable, tmp_path: Path) -> None:
    """Columns, trajectories and tables that are not there."""
    with pytest.raises(QueryError, match="There is no column 'stp'"):
        table.steps.filter(stp=1)
    with pytest.raises(QueryError, match="There is no column 'rewrd'"):
        table.trajectories.sort("rewrd")
    with pytest.raises(QueryError, match="Only a SELECT can be run"):
        table.sql("DROP TABLE spans")
    with pytest.raises(TableError, match="There is no trajectory 1/7/99"):
        table.trajectory(1, 7, 99)
    with pytest.raises(QueryError, match="There is no column '3'"):
        table.trajectories.sort(3)  # type: ignore[arg-type]
    with pytest.raises(TableError, match="There is no table at"):
        otel_rollout.open_table(str(tmp_path / "nothing"))


def test_importing_the_package_loads_no_engine(table: RolloutTable) -> None:
    """Training imports the package; deltalake and the viewer come with open_table()."""
    import subprocess
    import sys

    program = (
        "import sys, otel_rollout; "
        "print({'deltalake', 'arro3.core', 'otel_rollout.rollout_table'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout.strip() == "set()"
