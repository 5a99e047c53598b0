"""Hold the variables of TRL's trainers."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from otel_rollout.base.state import RoomState, register


@dataclass(slots=True)
class State(RoomState):
    """The trainers of this process."""

    trainers: weakref.WeakKeyDictionary[Any, Any] = field(default_factory=weakref.WeakKeyDictionary)
    """A trainer of TRL's → how far it has come."""
    trainer_count: int = 0
    """Number of TRL's trainers that have generated in this process."""


state = register(State())
