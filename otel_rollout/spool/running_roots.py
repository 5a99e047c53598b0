"""Read the open roots that recording processes keep beside their segments."""

from __future__ import annotations

from pathlib import Path

from otel_rollout.otlp.reader import UnreadableLineError, spans_of
from otel_rollout.otlp.span import Span
from otel_rollout.spool import layout, segments
from otel_rollout.spool.root_table import read_open


def running_roots(node_dir: Path) -> list[Span]:
    """Return the open roots of the processes that record into a node directory."""
    roots = []
    for writer in layout.journals(node_dir):
        table = node_dir / (writer + layout.OPEN_SUFFIX)
        if not table.exists() or segments.is_dead(node_dir, writer):  # most writers of a spool ended long ago
            continue
        for line in read_open(table):
            try:
                roots += spans_of(line)
            except UnreadableLineError:
                continue  # the slot is being written
    return roots
