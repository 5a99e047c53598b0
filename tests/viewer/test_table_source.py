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
