"""Join what the requests of each trajectory took in an inference engine to those who ask for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from otel_rollout.table.query import Engine

COLUMNS: Final = (
    "requests",
    "calls_without_request",
    "queue_seconds",
    "prefill_seconds",
    "decode_seconds",
    "first_token_seconds",
)
"""Columns of the view ``engine_time`` besides the identity."""
_NAMED: Final = re.compile(rf"\b({'|'.join(COLUMNS)})\b")


def is_recorded(engine: Engine) -> bool:
    """Return whether the table has a request; without one, the view would be read for nothing."""
    found = engine.run("SELECT span_id FROM recorded_spans WHERE name = 'llm_request' LIMIT 1")
    return bool(found.num_rows)


def is_named_in(*texts: str | None) -> bool:
    """Return whether a text names one of the columns."""
    return any(_NAMED.search(text) for text in texts if text)


def joined_to(source: str) -> str:
    """Return trajectories with the columns; the view without them is cheaper.

    Args:
        source: the view ``trajectories``, or a SELECT with its columns, in parentheses and named.
    """
    return (
        f"(SELECT listed.*, of_engine.* EXCEPT (requested) FROM (SELECT * FROM {source}) AS listed LEFT JOIN "  # noqa: S608
        f"(SELECT trace_id AS requested, {', '.join(COLUMNS)} FROM engine_time) AS of_engine "
        "ON listed.trace_id = of_engine.requested) AS with_engine_time"
    )
