"""Bound the time for which a caller waits for the flusher."""

from __future__ import annotations

import time
from typing import Final

from otel_rollout.base.waits import waits
from otel_rollout.record.recording.flusher import Flusher

MIN_CHECKS: Final = 64
"""Fewest checks of the journal before a caller drops a span, however long they take. A clock cannot tell
whether the flusher waits for the disk or for the GIL. But the caller needs the GIL for each check, and
between two checks the flusher can get it."""
MAX_CHECKS: Final = 2000
"""Maximum checks of one wait, even if others make progress: 1 s without waits for the GIL."""
CHECK_INTERVAL: Final = 0.0005
"""Seconds between two checks of a thread that waits."""


class Patience:
    """Bounds a wait: ``Waits.journal_room`` and MIN_CHECKS without progress, or MAX_CHECKS in all."""

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self._progress = -1
        self._checks = 0
        self._all_checks = 0
        self._deadline = 0.0

    def sleep(self) -> bool:
        """Sleep for CHECK_INTERVAL; return False if the caller has waited long enough."""
        progress = self._flusher.progress
        if progress != self._progress:
            self._progress, self._checks = progress, 0
            self._deadline = time.monotonic() + waits().journal_room
        time.sleep(CHECK_INTERVAL)
        self._checks += 1
        self._all_checks += 1
        if self._all_checks >= MAX_CHECKS:
            return False
        return self._checks < MIN_CHECKS or time.monotonic() < self._deadline
