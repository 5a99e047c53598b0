"""Which trajectories run at present, for exporters that can show it."""

from __future__ import annotations

import time
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.otlp.reader import UnreadableLineError, spans_of
from otel_rollout.spool import layout, segments
from otel_rollout.spool.root_table import read_open

LOOK_INTERVAL = 2.0
MINIMUM_AGE = 3.0
"""Seconds a trajectory has to run before it is shown as running: most end sooner and cost no request."""


class Running:
    """Finds trajectories that run and were not handed out yet.

    Args:
        node_dir: where their processes record.
    """

    def __init__(self, node_dir: Path) -> None:
        self._node_dir = node_dir
        self._next_look = 0.0
        self._known: set[int] = set()

    def new_roots(self) -> list[ReadableSpan]:
        """Root spans, without an end, of trajectories that have been running for a while."""
        if time.monotonic() < self._next_look:
            return []
        self._next_look = time.monotonic() + LOOK_INTERVAL
        roots = [root for root in self._roots() if _age(root) >= MINIMUM_AGE]
        known, self._known = self._known, {root.context.span_id for root in roots}
        return [root for root in roots if root.context.span_id not in known]

    def _roots(self) -> list[ReadableSpan]:
        roots = []
        for writer in segments.living_writers(self._node_dir):
            for line in read_open(self._node_dir / (writer + layout.OPEN_SUFFIX)):
                try:
                    roots += spans_of(line)
                except UnreadableLineError:
                    continue  # its slot was being reused
        return roots


def _age(root: ReadableSpan) -> float:
    return time.time() - (root.start_time or 0) / 1e9
