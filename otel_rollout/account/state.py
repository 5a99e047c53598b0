"""Hold the variables of this process's ledgers."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from otel_rollout.base.state import PER_PROCESS, RoomState, register


@dataclass(slots=True)
class State(RoomState):
    """The ledgers that this process writes."""

    ledger_lock: threading.RLock = field(default_factory=threading.RLock, metadata=PER_PROCESS)
    """Held while a ledger is changed or replaced, so that no thread writes to a removed file."""
    replaced_ledgers: dict[Path, os.stat_result] = field(default_factory=dict, metadata=PER_PROCESS)


state = register(State())
