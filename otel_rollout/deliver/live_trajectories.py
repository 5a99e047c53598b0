"""Find running trajectories, for exporters that can show them."""

from __future__ import annotations

import time
from pathlib import Path

from otel_rollout.base.waits import waits
from otel_rollout.otlp.span import Span
from otel_rollout.spool.files import running_roots


class LiveTrajectories:
    """Finds running trajectories and returns each of them once.

    Args:
        node_dir: holds the root tables of the recording processes.
    """

    def __init__(self, node_dir: Path) -> None:
        self._node_dir = node_dir
        self._next_look = 0.0
        self._known: set[str] = set()

    def new_roots(self) -> list[Span]:
        """Return open roots older than ``Waits.live_age`` that are new since the last call."""
        if time.monotonic() < self._next_look:
            return []
        self._next_look = time.monotonic() + waits().live_look
        roots = [root for root in running_roots(self._node_dir) if _age(root) >= waits().live_age]
        known, self._known = self._known, {root.span_id for root in roots}
        return [root for root in roots if root.span_id not in known]


def _age(root: Span) -> float:
    return time.time() - root.start_ns / 1e9
