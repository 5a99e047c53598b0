"""Track how much of a run's disk limit is used on this machine."""

from __future__ import annotations

import math
import time
from pathlib import Path

from otel_rollout.base.waits import waits
from otel_rollout.recording.sampling import Group, group_hash
from otel_rollout.spool import layout

_SHEDDING_STARTS, _SHEDDING_IS_COMPLETE = 0.5, 0.75
"""Shares of the limit. With ``whole_trajectories``, some groups are not recorded above the first share, and
no groups above the second. The rest of the limit is for trajectories that have started."""


class SpoolUsage:
    """The size of all segments in a node directory, including those of other writers.

    Args:
        node_dir: the directory.
        limit: maximum bytes of all segments together.
        whole_trajectories: whether, near the limit, groups are not recorded, so that others stay whole.
    """

    def __init__(self, node_dir: Path, limit: float, whole_trajectories: bool) -> None:
        self.limit = limit
        self.used = 0
        self._node_dir = node_dir
        self._whole_trajectories = whole_trajectories
        self._checked_at = -math.inf
        self._interval, self._rare_interval = waits().spool_check, waits().rare_spool_check

    @property
    def is_check_due(self) -> bool:
        """Whether ``Waits.spool_check`` has passed since the last check."""
        return time.monotonic() >= self._checked_at + self._interval

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

    @property
    def is_shedding(self) -> bool:
        """Whether some groups are not recorded."""
        return self._whole_trajectories and self.used / self.limit >= _SHEDDING_STARTS

    def sheds(self, group: Group) -> bool:
        """Return whether a group is not recorded; a fuller spool excludes more groups.

        Every process that measures the same directory makes the same decision.
        """
        share = (self.used / self.limit - _SHEDDING_STARTS) / (_SHEDDING_IS_COMPLETE - _SHEDDING_STARTS)
        return group_hash(group) < share
