"""Do the forwarder's work in threads that can be stopped."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class ForwarderThread(ABC):
    """A part of the forwarder's work, in a thread of its own.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Stop after the current piece of work; the next forwarder does the rest."""
        self._stop.set()
        self._thread.join(timeout)

    @abstractmethod
    def _work(self) -> None:
        """Work until ``_stop`` is set."""
