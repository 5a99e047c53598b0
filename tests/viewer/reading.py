"""Read spans as the commands do: as rows of a table, through its views."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.sources.private_table import fill
from otel_rollout.look.sources.table_source import TableSource
from otel_rollout.otlp.span import Span
from otel_rollout.table.location import location_of
from otel_rollout.table.query import Engine
from otel_rollout.table.store import Store


def conversation_of(spans: Sequence[Span], part: int | None = None) -> Conversation:
    """Return the only trajectory of spans, turn by turn."""
    with tempfile.TemporaryDirectory() as directory:
        store = Store(location_of(str(Path(directory) / "table")))
        fill(store, spans)
        return TableSource(Engine(store.open()), "table").conversation(spans[0].trace_id, part)
