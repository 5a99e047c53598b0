"""Hold the variables of integrations."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from otel_rollout.base.state import PER_PROCESS, WIRED, RoomState, register


@dataclass(slots=True)
class State(RoomState):
    """What is switched on in this process, and what each framework's integration knows."""

    instrumentors: dict[str, Any] = field(default_factory=dict)
    """Entry point's value → its instrumentor, which instrument() has switched on."""
    adapters: dict[str, Any] = field(default_factory=dict)
    """Name of a framework that traces by means of its own → what our adapter has added to the framework."""
    trainers: weakref.WeakKeyDictionary[Any, Any] = field(default_factory=weakref.WeakKeyDictionary)
    """A trainer of TRL's → its progress."""
    trainer_count: int = 0
    """Number of TRL's trainers that have generated in this process."""
    originals: dict[str, Any] = field(default_factory=dict, metadata=WIRED)
    """Name of a replaced function of verl's → the original function."""
    trajectories: Any = None
    """What the process of verl's trainer knows of the trajectories that it trains on."""
    requests: weakref.WeakKeyDictionary[Any, Any] = field(
        default_factory=weakref.WeakKeyDictionary, metadata=PER_PROCESS
    )
    """An ``OutputProcessor`` of vLLM's → the open requests of trajectories, by vLLM's internal id."""


state = register(State())
