"""Trajectories are found in a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_rollout.look.sources.reference import parse
from otel_rollout.look.sources.table_source import TableSource
from otel_rollout.table.query import Engine
from tests.table.tables import root, row, score, written


@pytest.mark.parametrize("name", ["1/", "1/7"])
@pytest.mark.parametrize("siblings", [1, 2])
def test_listed_trajectory_has_its_reward_and_tokens(tmp_path: Path, name: str, siblings: int) -> None:
    """Also the only one of its group."""
    rows = [
        made
        for n in range(1, siblings + 1)
        for made in (
            root(str(n), rollout_n=n),
            row(str(n), "b", "a" + str(n), kind="LLM", tokens_in=3, tokens_out=5, rollout_n=n),
            score(str(n), "c", 0.25, rollout_n=n),
        )
    ]
    engine = Engine(written(tmp_path / "table", rows).open())
    found = TableSource(engine, "table").find(parse(name))
    assert len(found) == siblings
    assert all(summary.scores[0].value == 0.25 for summary in found)
    assert all((summary.tokens.input, summary.tokens.output) == (3, 5) for summary in found)


def test_name_of_a_trajectory_whose_step_has_a_slash_finds_it(tmp_path: Path) -> None:
    """The name begins like one of another step, which has a trajectory of its own."""
    spans = [root("1", step=None, step_text="1/2", sample_index="0"), root("2", step=1, sample_index="2")]
    source = TableSource(Engine(written(tmp_path / "table", spans).open()), "table")
    (found,) = source.find(parse("1/2/0/0"))
    assert found.trace_id == spans[0]["trace_id"]
    assert {summary.path for summary in source.find(parse("1/2/"))} == {"1/2/0/0", "1/2/0"}


def test_name_of_a_trajectory_whose_step_is_called_validation_finds_it(tmp_path: Path) -> None:
    """Its name begins like that of a trajectory of a validation."""
    spans = [root("1", step=None, step_text="validation"), root("2", step=7, validate=True)]
    source = TableSource(Engine(written(tmp_path / "table", spans).open()), "table")
    for name in ("validation/7/0", "validation/7/7/0"):
        assert [summary.path for summary in source.find(parse(name))] == [name]
