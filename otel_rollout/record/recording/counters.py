"""Count what one process started, recorded, dropped and skipped.

The counts are in the journal, where they survive a kill.
"""

from __future__ import annotations

import threading
from typing import Final

from otel_rollout.base.errors import logger, pass_on
from otel_rollout.record.recording.identity import Identity
from otel_rollout.spool.journal import DROP_REASONS, SKIP_REASONS, TALLIES, Journal, JournalState

_SKIP_WARNINGS: Final = {
    "application_sampler": "the sampler of the application's own OpenTelemetry samples a trajectory out, "
    "which reaches no exporter"
}
"""Reason → warning for the first trajectory that is skipped although the user did not ask for that."""


class Counters:
    """The counters of one writer.

    Args:
        journal: the journal that holds the counts.

    Attributes:
        lock: held while the count of drops, skips or a scope changes. The lock is reentrant, because a signal
            handler may count while it interrupts another count.
    """

    def __init__(self, journal: Journal) -> None:
        self.lock = threading.RLock()
        self._journal = journal
        self._drops = dict.fromkeys(DROP_REASONS, 0)
        self._skips = dict.fromkeys(SKIP_REASONS, 0)
        self._is_abandoned = False

    def drop(self, reason: str, identity: Identity, spans: int = 1) -> bool:
        """Count spans that were not recorded; return False, for ``return drop(...)``."""
        if self._is_abandoned:
            return False
        with self.lock:
            total = self._drops[reason] = self._drops[reason] + spans
            self._journal.drop(*identity.step, reason, spans)
        if total == spans:
            logger.warning("otel-rollout: a span was not recorded (%s); further ones are counted", reason)
        return False

    def skip(self, reason: str, number: int = 1) -> None:
        """Count a trajectory or scores that are not recorded, without a failure: sampled out, for example."""
        if self._is_abandoned:
            return
        with self.lock:
            total = self._skips[reason] = self._skips[reason] + number
            self._journal.skip(reason, total)
        if total == number and reason in _SKIP_WARNINGS:
            logger.warning("otel-rollout: %s; further ones are counted", _SKIP_WARNINGS[reason])

    def began_trajectory(self) -> None:
        """Count a trajectory that began outside any other trajectory."""
        self._journal.tallies[0] += 1

    def began_outside(self) -> None:
        """Count an operation that began outside any trajectory."""
        self._journal.tallies[1] += 1

    def recorded_by(self, scope: str) -> None:
        """Count a recorded span of another library."""
        if self._is_abandoned:
            return
        try:
            with self.lock:
                self._journal.count_scope(scope)
        except Exception as error:  # noqa: BLE001 - the name may be no text; we are inside user code
            pass_on(error)

    def read(self) -> JournalState:
        """Return the counts so far."""
        return self._journal.state()

    def abandon(self) -> None:
        """Stop counting in a forked child: the journal belongs to the parent."""
        self._is_abandoned = True
        self.lock = threading.RLock()  # a thread of the parent may have held it
        self._journal.started = memoryview(bytearray(8)).cast("Q")
        self._journal.tallies = memoryview(bytearray(8 * len(TALLIES))).cast("Q")
