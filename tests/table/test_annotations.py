"""Scores from a DataFrame are appended to the table, or nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pandas
import polars
import pyarrow
import pytest

import otel_rollout
from otel_rollout.rollout_table import RolloutTable
from otel_rollout.table.errors import TableError
from tests.table.tables import root, row, score, written


@pytest.fixture
def table(tmp_path: Path) -> RolloutTable:
    """Return a table of two siblings, the first with a reward, and of a running trajectory."""
    rows = [root("1"), score("1", "b", 0.5), root("2", rollout_n=1), row("3", "c", "a3", rollout_n=2)]
    written(tmp_path / "table", rows)
    return otel_rollout.open_table(str(tmp_path / "table"))


def traces(table: RolloutTable) -> list[str]:
    return [each["trace_id"] for each in table.trajectories.sort("rollout_n")]


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "dicts"])
def test_scores_of_a_frame_are_in_the_views(table: RolloutTable, kind: str) -> None:
    """Numbers, bools and labels keep their type; a null is no score; the newest counts."""
    first, second, running = traces(table)
    columns = {
        "trace_id": [first, second, running],
        "reward": [0.75, None, 1.0],
        "safe": [True, False, None],
        "verdict": ["good", None, "odd"],
        "why": ["read it", None, None],
    }
    as_rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    frame = {
        "pandas": pandas.DataFrame,
        "polars": polars.DataFrame,
        "arrow": pyarrow.table,
        "dicts": lambda _: as_rows,
    }[kind](columns)
    assert table.annotate(frame, comment="why") == 6
    found = {(each["rollout_n"], each["name"]): each for each in table.scores}
    assert {key: (each["value"], each["label"]) for key, each in found.items()} == {
        (0, "reward"): (0.75, None),
        (2, "reward"): (1.0, None),
        (0, "safe"): (1.0, "True"),
        (1, "safe"): (0.0, "False"),
        (0, "verdict"): (None, "good"),
        (2, "verdict"): (None, "odd"),
    }
    assert found[0, "safe"]["comment"] == "read it"
    assert table.trajectory(1, 7, 0).scores == {"reward": 0.75, "safe": True, "verdict": "good"}
    assert table.steps.dicts()[0]["reward_mean"] == 0.875


@pytest.mark.parametrize(
    ("step", "rollout"),
    [
        ({"step": None, "step_text": "warm-up"}, {}),
        ({}, {"rollout_n": None, "rollout_text": "a/b"}),
        ({"step": None}, {"rollout_n": None}),
    ],
)
def test_trajectory_with_texts_for_numbers_gets_its_score(
    tmp_path: Path, step: dict[str, Any], rollout: dict[str, Any]
) -> None:
    """A step or rollout may be text, or missing."""
    written(tmp_path / "table", [root("1", **step, **rollout)])
    table = otel_rollout.open_table(str(tmp_path / "table"))
    assert table.annotate([{"trace_id": traces(table)[0], "short": 1.0}]) == 1
    assert [(each["name"], each["value"]) for each in table.scores] == [("short", 1.0)]


def test_named_columns_alone_are_scores(table: RolloutTable) -> None:
    """A frame of trajectories has many other columns."""
    frame = table.trajectories.filter(rollout_n=0).pandas()
    frame["judged"] = frame["reward"] * 2
    assert table.annotate(frame, "judged") == 1
    assert {each["name"] for each in table.scores} == {"reward", "judged"}


def test_frame_without_rows_writes_nothing(table: RolloutTable) -> None:
    """The table keeps its version."""
    version = table.version
    assert table.annotate([]) == 0
    assert table.version == version


@pytest.mark.parametrize(
    ("frame", "names", "words"),
    [
        ([{"trace": "1"}], (), "The frame has no column 'trace_id'. Did you mean 'trace'?"),
        ([{"trace_id": "1", "good": 1}], ("god",), "The frame has no column 'god'. Did you mean 'good'?"),
        ([{"trace_id": "1", "good": [1]}], (), "Column 'good' of the frame holds list"),
        ([{"trace_id": "1", "": 1}], (), "Column '' is no score: a name has 1 to 250 characters."),
        ([{"trace_id": "f" * 32, "good": 1}], (), "The table lacks 1 of the frame's trajectories"),
        ([{"trace_id": None, "good": 1}], (), "The table lacks 1 of the frame's trajectories"),
        ([{"trace_id": "1", "n" * 251: 1}], (), "is no score: a name has 1 to 250"),
    ],
)
def test_mistake_in_a_frame_is_one_sentence(
    table: RolloutTable, frame: list[dict[str, object]], names: tuple[str, ...], words: str
) -> None:
    """Nothing is written, not even the scores of other rows."""
    version = table.version
    with pytest.raises(TableError) as raised:
        table.annotate(
            [{**dict.fromkeys(frame[0], 1), "trace_id": traces(table)[0]}, *frame]
            if "trace_id" in frame[0]
            else frame,
            *names,
        )
    assert words in str(raised.value)
    assert table.refresh().version == version


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ({"trace_id": ["1"], "good": [1]}, "A dict has no rows"),
        ("scores.csv", "A str has no rows"),
        (pandas.Series(["1"]), "The Series cannot be read as rows"),
        (
            pandas.DataFrame({"trace_id": ["1", "2"], "good": [1.0, "a"]}),
            "The DataFrame cannot be read as rows",
        ),
    ],
)
def test_what_is_no_frame_is_one_sentence(table: RolloutTable, frame: Any, words: str) -> None:
    """Nothing is written."""
    version = table.version
    with pytest.raises(TableError, match=words):
        table.annotate(frame)
    assert table.refresh().version == version


def test_second_score_of_a_name_is_refused(table: RolloutTable) -> None:
    """Both would have one time, so none would be the newest."""
    first = traces(table)[0]
    with pytest.raises(TableError, match=f"several scores 'good' of trajectory '{first}'"):
        table.annotate([{"trace_id": first, "good": value} for value in (1, 0)])


def test_rows_may_lack_a_score(table: RolloutTable) -> None:
    """Values of numpy count as numbers."""
    first, second, _ = traces(table)
    rows = [{"trace_id": first}, {"trace_id": second, "good": numpy.float32(0.5), "many": numpy.int64(3)}]
    assert table.annotate(rows) == 2
    found = {each["name"]: each["value"] for each in table.scores.filter(trace_id=second)}
    assert found == {"good": 0.5, "many": 3.0}


def test_single_trajectory_has_its_new_scores(table: RolloutTable) -> None:
    """Also one that was read before."""
    first = traces(table)[0]
    assert "good" not in table.trajectory(first).scores
    table.annotate([{"trace_id": first, "good": 1}])
    assert table.trajectory(first).scores["good"] == 1
