"""The identity of a trajectory, as each of its spans has it."""

from __future__ import annotations

import threading
from typing import Any

from otel_rollout.record.recording.identity import Identity


def test_identity_is_encoded_without_a_lock() -> None:
    """Two threads encode identities while the process forks.

    No fork leaves a lock locked.
    """
    begun, over = threading.Event(), threading.Event()

    class Slow:
        def __str__(self) -> str:
            begun.set()
            over.wait(60)
            return "slow"

    slow: Any = Slow()
    other = threading.Thread(target=lambda: Identity({"a": slow}).encode(), daemon=True)
    other.start()
    assert begun.wait(60)
    here = threading.Thread(target=lambda: Identity({"a": 1}).encode(), daemon=True)
    here.start()
    here.join(10)
    is_stuck = here.is_alive()
    over.set()
    other.join()
    here.join()
    assert not is_stuck
