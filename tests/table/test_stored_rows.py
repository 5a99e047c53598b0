"""Merged trajectory rows are those of the view over all spans, whatever happens to a table."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings

from tests.table import stored_model
from tests.table.stored_histories import Compact, Deliver, Operation, Row, histories
from tests.table.tables import root, row, score

_IS_NIGHTLY = settings.default is not None and settings.default.max_examples >= 200
_IN_MEMORY = settings(max_examples=20_000 if _IS_NIGHTLY else 400)
_ELSEWHERE = root("2", run_id="run-2", step=7)
_INSIDE = row("3", "e3", "a3", run_id="run-2", step=9, kind="AGENT")


def _by_identity(**columns: Any) -> Row:
    return score("f", "f", 0.75, score_by="identity", is_root=False, parent_span_id=None, **columns)


def _history(first: list[Row], last: list[Row]) -> list[Operation]:
    return [Deliver(first), Compact([], False), Deliver(last)]


@_IN_MEMORY
@given(histories)
@example(_history([root("1"), _by_identity(run_id="run-2")], [_ELSEWHERE]))
@example(_history([root("1"), _ELSEWHERE], [_by_identity(run_id="run-2")]))
@example(_history([root("1"), _INSIDE, _by_identity(run_id="run-2")], [root("3", step=8)]))
def test_rules_of_merging_give_the_rows_of_all_spans(history: list[Operation]) -> None:
    """The rules alone, in plain Python: deliveries in any order, repeats, late scores, retries, kills.

    In the examples, a run that scored trajectories of another one gets its first trajectory, has one that is
    stored, and loses its last one: only a run without trajectories scores those of others.
    """
    table = stored_model.Table()
    for operation in history:
        table.do(operation)
        assert table.merged() == table.expected()
