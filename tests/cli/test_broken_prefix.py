"""`otel-rollout list --broken-prefix` names trajectories whose prompts break the prefix, also of a spool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from otel_rollout.otlp.json_line import spans_of
from otel_rollout.table.location import location_of
from otel_rollout.table.rows import batch_of, rows_of
from otel_rollout.table.store import Store
from otel_rollout.turns.line_rewriter import LineRewriter
from tests.cli.test_table import rows, run
from tests.viewer.test_conversation import line

PROMPT, ANSWER = list(range(100, 140)), list(range(200, 220))


@pytest.fixture(params=["table", "spool"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A trajectory whose third prompt has other tokens for a part of the second answer."""
    third = [*PROMPT, *ANSWER, 7, *ANSWER[:9], 300, *ANSWER[11:], 8]
    lines = [
        line(2, {"prompt_ids": PROMPT}, {"token_ids": ANSWER}),
        line(3, {"prompt_ids": [*PROMPT, *ANSWER, 7]}, {"token_ids": ANSWER}),
        line(4, {"prompt_ids": third}, {"token_ids": [9]}),
        line(1, None, None, parent=0, name="rollout_trace", kind="AGENT", end=10**6),
    ]
    if request.param == "spool":
        (tmp_path / "spans.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        return tmp_path / "spans.jsonl"
    rewriter = LineRewriter(tmp_path)
    spans = [span for each in lines for span in spans_of(rewriter.rewrite(each).encoded)]
    Store(location_of(str(tmp_path / "table"))).append([batch_of(rows_of(spans))], "tests", 1)
    return tmp_path / "table"


def test_list_names_trajectories_with_a_broken_prefix(source: Path) -> None:
    """Their first break has turn, token, extent and kind; a trajectory without one is not listed."""
    (found,) = rows(run("list", "--from", source, "--broken-prefix").output)
    assert (found[0], found[-6:]) == ("1/7/0", ["1", "2", "70", "2", "1", "retokenized"])
    assert "no trajectory is like that" in run("list", "--from", source, "--where", "broken_turns > 1").output
    as_json = run("list", "--from", source, "--broken-prefix", "--format", "json").output
    assert json.loads(as_json)[0]["break_token"] == 70


def test_views_have_each_broken_prefix(source: Path) -> None:
    """A query finds them by their columns."""
    sql = "SELECT turn, next_turn, token, removed, added, kind FROM prefix_breaks"
    assert rows(run("query", sql, "--from", source).output) == [["2", "3", "70", "2", "1", "retokenized"]]
