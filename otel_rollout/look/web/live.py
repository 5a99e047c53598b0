"""Follow a table that is being written: prepare its newest version while an older one is shown."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from otel_rollout.base.errors import ReportedError
from otel_rollout.look.web.snapshot import Origin, Snapshot
from otel_rollout.table.errors import NoTableError

PERIOD: Final = 3.0
"""Minimum seconds between two looks for a newer version."""
_IDLE_RATIO: Final = 2.0
"""Minimum pause between two looks, as a multiple of the last one's duration; limits the CPU time."""
_logger = logging.getLogger("otel_rollout.web")


class NotReadyError(Exception):
    """No version of the table could be read yet; the message is one sentence."""


class Live:
    """The newest prepared version of a table.

    Args:
        origin: where the spans are.
        period: minimum seconds between two looks for a newer version.

    Attributes:
        problem: why the newest version could not be read; empty without a problem.
    """

    def __init__(self, origin: Origin, period: float = PERIOD) -> None:
        self.origin = origin
        self.problem = ""
        self._period = period
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._newest: Snapshot | None = None
        self._thread = threading.Thread(target=self._follow, name="otel-rollout-view", daemon=True)

    def start(self) -> None:
        """Prepare the newest version, then follow the table in a thread. A missing table may come later.

        Raises:
            TableError: the table cannot be read.
            ViewerError: the files cannot be read.
        """
        try:
            self._prepare(self.origin.version())
        except NoTableError as error:
            self.problem = str(error)
        self._thread.start()

    def stop(self) -> None:
        """Stop following, and release the last version."""
        self._stop.set()
        with self._lock:
            last, self._newest = self._newest, None
        if last is not None:
            self._release(last)

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Yield the newest prepared version; it stays open until the block ends.

        Raises:
            NotReadyError: no version has been prepared yet.
        """
        with self._lock:
            newest = self._newest
            if newest is None:
                raise NotReadyError(self.problem or f"{self.origin.location} is being read.")
            newest.users += 1
        try:
            yield newest
        finally:
            self._release(newest)

    def _follow(self) -> None:
        pause = self._period
        while not self._stop.wait(pause):
            began = time.monotonic()
            self._look()
            pause = max(self._period, _IDLE_RATIO * (time.monotonic() - began))

    def _look(self) -> None:
        """Prepare a newer version if there is one; keep the older version if the newer one cannot be read."""
        try:
            version = self.origin.version()
            if self._newest is None or version != self._newest.version:
                self._prepare(version)
            self.problem = ""
        except ReportedError as error:
            self._report(str(error))
        except Exception as error:  # the thread goes on: the next look may succeed
            _logger.exception("The newest version cannot be prepared")
            self._report(f"The newest version cannot be read ({type(error).__name__}).")

    def _report(self, problem: str) -> None:
        if not self.problem.startswith(problem):
            self.problem = f"{problem} (since {utc(time.time())})"

    def _prepare(self, version: Hashable) -> None:
        snapshot = Snapshot(self.origin, version, time.time())
        with self._lock:
            earlier, self._newest = self._newest, snapshot
        if earlier is not None:
            self._release(earlier)
        if self._stop.is_set():
            self.stop()

    def _release(self, snapshot: Snapshot) -> None:
        """Remove one user of a version; close the version after the last user."""
        with self._lock:
            snapshot.users -= 1
            is_unused = not snapshot.users
        if is_unused:
            snapshot.close()


def utc(seconds: float) -> str:
    """Format a Unix time in seconds as a time of day in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")
