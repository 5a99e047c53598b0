"""Tests of batches that generate in unusual ways, with a stand-in for TRL's trainer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from otel_rollout._state import process
from otel_rollout.base import semconv
from tests.spool_reader import Recorded
from tests.trl.stand_in import calls, says, traced

Reader = Callable[[], list[Recorded]]


@pytest.fixture(autouse=True)
def _first_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "trainer_count", 0)


def shown(span: Recorded, key: str = semconv.OUTPUT_VALUE) -> Any:
    """Return a span's output, or its input."""
    return json.loads(span.attributes[key]) if key in span.attributes else None


def of_row(spans: list[Recorded], row: int) -> list[Recorded]:
    """Return the spans of one sibling in order, the root first."""
    found = [span for span in spans if span.attributes["rollout.rollout_n"] == row]
    return sorted(found, key=lambda span: (bool(span.span.parent_span_id), span.span.start_time_unix_nano))


def test_tool_that_is_added_while_the_loop_runs_is_no_error(recorded: Reader) -> None:
    """Its answer is recorded. Calls that cannot reach it, and unknown names, are errors as before."""

    def add() -> str:
        trainer._sync_tool_dicts[0]["new"] = lambda x: x + 1
        return "added"

    asked = calls(("new", {"x": 0}), ("add", {}), ("new", {"x": 1}), ("new", "text"), ("add", 1), ("nope", {}))
    trainer = traced()(lambda call, row: asked if (call, row) == (1, 0) else says("done"), [add])
    trainer.run()
    tools = {
        (span.attributes["gen_ai.tool.name"], json.dumps(shown(span, semconv.INPUT_VALUE)["arguments"])): (
            span.span.status.code,
            shown(span),
        )
        for span in of_row(recorded(), 0)
        if span.name.startswith("execute_tool")
    }
    assert tools == {
        ("new", '{"x": 0}'): (2, None),  # before it was added
        ("add", "{}"): (0, "added"),
        ("new", '{"x": 1}'): (0, "2"),
        ("new", '"text"'): (2, None),
        ("add", "1"): (2, None),
        ("nope", "{}"): (2, None),
    }
