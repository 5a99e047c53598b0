"""Track how much of a run's disk limit is used on this machine."""

from __future__ import annotations

import math
import time
from pathlib import Path

from otel_rollout.base.waits import waits
from otel_rollout.spool import layout


class SpoolUsage:
    """The size of all segments in a node directory, including those of other writers.

    Args:
        node_dir: the directory.
        limit: maximum bytes of all segments together.
    """

    def __init__(self, node_dir: Path, limit: float) -> None:
        self.limit = limit
        self.used = 0
        self._node_dir = node_dir
        self._checked_at = -math.inf
        self._interval, self._rare_interval = waits().spool_check, waits().rare_spool_check

    def check(self, rarely: bool = False) -> None:
        """Measure the segments' total size, at most once per interval."""
        interval = self._rare_interval if rarely else self._interval
        now = time.monotonic()
        if now >= self._checked_at + interval:
            self._checked_at = now
            try:
                self.used = layout.segment_bytes(self._node_dir)
            except OSError:  # the directory is gone; the next flush handles that
                self.used = 0
