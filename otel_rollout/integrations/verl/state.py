"""Hold the variables of verl's processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from otel_rollout.base.state import WIRED, RoomState, register


@dataclass(slots=True)
class State(RoomState):
    """What this process replaces of verl, and knows of its training."""

    originals: dict[str, Any] = field(default_factory=dict, metadata=WIRED)
    """Name of a function of verl's that is replaced → that function."""
    trajectories: Any = None
    """What the process of verl's trainer knows of the trajectories that it trains on."""


state = register(State())
