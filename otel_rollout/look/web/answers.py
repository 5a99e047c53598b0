"""Compute slow results in a thread; pages show the last result until a newer one is ready."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Final

from otel_rollout.base.bounded import BoundedDict
from otel_rollout.look.web.live import Live
from otel_rollout.look.web.snapshot import Snapshot

MAX_ANSWERS: Final = 16
"""Maximum results that are kept; the least recently requested one is removed first."""
_IDLE_RATIO: Final = 1.0
"""Minimum pause between two computations of a result, as a multiple of the last one's duration."""

Make = Callable[[Snapshot], Any]
"""Function that computes a result from a snapshot."""


class PageAnswer:
    """A computed result, perhaps from an older version of the table.

    Attributes:
        value: the result; None if there is a problem.
        problem: why there is no result.
        read_at: when its version was read, in seconds of Unix time.
    """

    def __init__(self, make: Make) -> None:
        self.value: Any = None
        self.read_at = 0.0
        self.problem: Exception | None = None
        self.make = make
        self.version: Hashable = None
        self.is_queued = False
        self.is_ready = threading.Event()
        self.not_before = 0.0


class Answers:
    """Results of one kind, such as reports. A thread computes one after another.

    Args:
        live: the versions of the table.
    """

    def __init__(self, live: Live) -> None:
        self._live = live
        self._lock = threading.Lock()
        self._found: BoundedDict[Hashable, PageAnswer] = BoundedDict(MAX_ANSWERS)
        self._jobs: queue.SimpleQueue[PageAnswer] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="otel-rollout-answers", daemon=True).start()

    def get(self, key: Hashable, make: Make, version: Hashable, patience: float) -> PageAnswer | None:
        """Return the newest result at once; without any, wait for the first.

        Args:
            key: names the result.
            make: computes the result.
            version: the newest version of the table; a result from another version is computed anew
                meanwhile.
            patience: maximum seconds to wait.

        Returns:
            The result, or the problem; None if there is no result after ``patience`` seconds.
        """
        with self._lock:
            answer = self._found[key] = self._found.get(key) or PageAnswer(make)
            if answer.version != version:
                self._queue(answer)
        return answer if answer.is_ready.wait(patience) else None

    def _queue(self, answer: PageAnswer) -> None:
        if not answer.is_queued and time.monotonic() >= answer.not_before:
            answer.is_queued = True
            self._jobs.put(answer)

    def _work(self) -> None:
        while True:
            answer = self._jobs.get()
            began = time.monotonic()
            self._compute(answer)
            with self._lock:
                answer.not_before = time.monotonic() + _IDLE_RATIO * (time.monotonic() - began)
                answer.is_queued = False
            answer.is_ready.set()

    def _compute(self, answer: PageAnswer) -> None:
        try:
            with self._live.snapshot() as snapshot:
                answer.version = snapshot.version
                answer.value = answer.make(snapshot)
                answer.read_at, answer.problem = snapshot.read_at, None
        except Exception as error:  # noqa: BLE001 - the thread goes on; the page shows the problem
            answer.value, answer.problem = None, error
