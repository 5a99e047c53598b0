"""`otel-rollout group` reads a spool, a real MLflow server and a table, as `show` does."""

from __future__ import annotations

import json
import re

import pytest

from tests.viewer.conftest import Rollout, run
from tests.viewer.test_show import SOURCES, WITH_TEXT


@SOURCES
def test_group_is_read_from_every_source(rollout: Rollout, source: str) -> None:
    """Each source gives the same siblings, rewards and branches."""
    document = json.loads(run("group", "1/7", "--from", rollout.location(source), "--json"))
    siblings = document["siblings"]
    assert [(each["name"], each["state"], each["reward"], each["turns"]) for each in siblings] == [
        ("1/7/0", "ok", 1.0, 5), ("1/7/1", "ok", 0.0, 5), ("1/7/2", "ok", 0.0, 5)
    ]  # fmt: skip
    tree = document["tree"]
    assert [turn["role"] for turn in tree["turns"]] == ["system", "user"]
    assert [part["siblings"] for part in tree["branches"]] == [["1/7/0", "1/7/2"], ["1/7/1"]]
    assert document["contrast"]["sentence"] == (
        "They part at turn 5 (assistant), character 1 of it (“It” and “[bold]not”)."
    )
    validation = run("group", "validation/1/7", "--from", rollout.location(source))
    assert "One trajectory: there is no sibling to compare with." in validation


@WITH_TEXT
def test_token_at_which_replies_part_is_named(rollout: Rollout, source: str) -> None:
    """Replies that were recorded as token ids are compared by them; their text is shown."""
    shown = run("group", "2/counting", "--from", rollout.location(source), columns=160)
    assert "2 branches from turn 10 (assistant), token 5 of it" in shown
    assert re.search(r"10 assistant  The end is here\.", shown)


@pytest.mark.parametrize("source", ["spool", "table"])
def test_run_can_be_chosen(rollout: Rollout, source: str) -> None:
    """A spool becomes a table for a moment then."""
    shown = run("group", "1/7", "--from", rollout.location(source), "--run", "latest")
    assert "3 siblings · mean reward 0.3333" in shown


def test_run_of_mlflow_is_refused_with_advice(rollout: Rollout) -> None:
    """Commands that choose runs read tables and spools."""
    refused = run("group", "1/7", "--from", rollout.location("mlflow"), "--run", "latest", code=2)
    assert refused.startswith("This command reads tables, spools, dumps and files of OTLP.")


@pytest.mark.parametrize("source", ["spool", "mlflow", "table"])
def test_group_that_does_not_exist_is_reported(rollout: Rollout, source: str) -> None:
    """One line names the source and the command that lists groups."""
    refused = run("group", "9/9", "--from", rollout.location(source), code=2)
    assert refused.startswith("There is no group 9/9 in ")
    assert len(refused.splitlines()) == 1
