"""The list of a run's trajectories filters by what training made of them, as `otel-rollout list` does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from re import findall
from urllib.parse import urlencode

import pytest
from typer.testing import CliRunner

from otel_rollout.cli.main import app
from tests.table.tables import root, row, written
from tests.table.training_rows import trained
from tests.web.served import Served

OPTIONS = {"filtered": ["--filtered"], "broken_prefix": ["--broken-prefix"]}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of eight trajectories, of which each has another lag and mismatch."""
    path = tmp_path_factory.mktemp("training") / "table"
    scores = (
        {"trained": number % 3 > 0, "policy_lag": number, "logprob_diff_max": number / 10}
        for number in range(8)
    )
    own = {"step": 1, "sample_index": "0", "rollout_n": 0, "kind": "LLM"}
    broken = {"break_of": "c1".rjust(16, "0"), "break_token": 40, "break_kind": "retokenized"}
    calls = [row("1", "c1", "a1", **own), row("1", "c2", "a1", **own, **broken)]
    written(
        path, [*calls, *(line for number, each in enumerate(scores) for line in trained(number, 1, each))]
    )
    return path


@pytest.fixture(scope="module")
def served_training(table: Path) -> Iterator[Served]:
    """Serve the table."""
    with Served(table, table.parent) as server:
        yield server


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        ({"filtered": "true"}, 3),
        ({"lag": ">5"}, 2),
        ({"mismatch": "0.1-0.3"}, 3),
        ({"filtered": "true", "mismatch": ">0.2", "reward": "<0.7"}, 1),
        ({"broken_prefix": "true"}, 1),
        ({"broken_prefix": "true", "lag": ">5"}, 0),
    ],
)
def test_page_and_command_list_the_same(
    served_training: Served, table: Path, fields: dict[str, str], number: int
) -> None:
    """The fields have the names of the options."""
    (address,) = set(findall(r'href="(/run\?[^"]*)"', served_training.get("/").body))
    run = unescape(address).partition("?")[2]
    answer = served_training.get(f"/trajectories?{run}&{urlencode(fields)}")
    assert answer.status == 200
    paths = findall(r'<td><a href="/trajectory[^"]*">([^<]*)</a>', answer.body)
    options = [part for name, text in fields.items() for part in OPTIONS.get(name, [f"--{name}", text])]
    ran = CliRunner().invoke(app, ["list", "--from", str(table), "--format", "json", *options])
    assert paths == sorted(each["path"] for each in json.loads(ran.output))
    assert len(paths) == number


def test_page_and_command_have_one_order_and_know_blank_rows(tmp_path: Path) -> None:
    """Steps that are text come in the order of their texts; a dataset row may be a blank."""
    texts = {"1": "warm-up", "2": "cool-down", "3": "warm"}
    rows = [root(trace, step=None, step_text=text) for trace, text in texts.items()]
    written(tmp_path / "table", [*rows, root("4", sample_index=" "), root("5", rollout_n=None)])
    with Served(tmp_path / "table", tmp_path) as server:
        (run,) = set(findall(r'href="/run\?([^"]*)"', server.get("/").body))
        for options in ([], ["--sample", " "]):
            field = urlencode({"sample": " "} if options else {})
            page = server.get(f"/trajectories?{unescape(run)}&{field}").body
            ran = CliRunner().invoke(
                app, ["list", "--from", str(tmp_path / "table"), "--format", "json", *options]
            )
            listed = [each["path"] for each in json.loads(ran.output)]
            assert len(listed) == (1 if options else 5)
            assert findall(r'<td><a href="/trajectory[^"]*">([^<]*)</a>', page) == listed


def test_page_has_what_the_trainer_said(served_training: Served) -> None:
    """Columns and fields of a trainer are there where a trainer has scored the run."""
    (address,) = set(findall(r'href="(/run\?[^"]*)"', served_training.get("/").body))
    page = served_training.get(f"/trajectories?{unescape(address).partition('?')[2]}")
    assert "trained reason lag mismatch broken turns" in page.text
    for name in ("lag", "mismatch", "filtered", "broken_prefix"):
        assert f'name="{name}"' in page.body
