"""Hold the variable of vLLM's engines."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from otel_rollout.base.state import PER_PROCESS, RoomState, register


@dataclass(slots=True)
class State(RoomState):
    """The engines of this process."""

    requests: weakref.WeakKeyDictionary[Any, Any] = field(
        default_factory=weakref.WeakKeyDictionary, metadata=PER_PROCESS
    )
    """An ``OutputProcessor`` of vLLM's → the open requests of trajectories, by vLLM's internal id."""


state = register(State())
