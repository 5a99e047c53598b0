"""Make the pages of a run: each is what ``--html`` writes, with links."""

from __future__ import annotations

from otel_rollout.table.select import QueryError
from otel_rollout.viewer import conversation, page
from otel_rollout.viewer.comparison import compare
from otel_rollout.viewer.conversation import Conversation
from otel_rollout.viewer.table_source import traces_of
from otel_rollout.web.request import Asked
from otel_rollout.web.trajectory_choice import Row, row_of, siblings_of
from otel_rollout.web.trajectory_list import Filters, page_of_trajectories

_RUNNING = "running"


def trajectories(asked: Asked) -> str:
    """Return the list of trajectories that a form filters. It is not loaded again while somebody types."""
    asked.refreshed(by_default=False)
    return page_of_trajectories(asked.snapshot, asked.run, Filters(asked.given), asked.links)


def trajectory(asked: Asked) -> str:
    """Return the page of a trajectory, turn by turn."""
    row, root_id = row_of(asked.snapshot, asked.run, asked.name("name"))
    asked.refreshed(is_changing=asked.is_live and row["state"] == _RUNNING)
    found = _conversations(asked, (row, root_id))[0]
    return page.of_conversation(found, asked.links, siblings_of(asked.snapshot, asked.run, row))


def comparison(asked: Asked) -> str:
    """Return the page of two trajectories side by side."""
    left, right = _conversations(
        asked, *(row_of(asked.snapshot, asked.run, asked.name(side)) for side in ("left", "right"))
    )
    return page.of_comparison(compare(left, right), asked.links)


def _conversations(asked: Asked, *chosen: tuple[Row, int | None]) -> list[Conversation]:
    """Read trajectories at once; see :func:`row_of`."""
    traces = traces_of(asked.snapshot.engine, [row["trace_id"] for row, _ in chosen])
    for trace_id, spans in traces.items():
        if not spans:
            raise QueryError(f"None of the spans of {trace_id} is in the table yet.")
    return [conversation.conversation_of(traces[row["trace_id"]], root_id) for row, root_id in chosen]
