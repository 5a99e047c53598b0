"""Hold the variables of adapters to other libraries' own tracing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from otel_rollout.base.state import RoomState, register


@dataclass(slots=True)
class State(RoomState):
    """What is switched on in this process."""

    instrumentors: dict[str, Any] = field(default_factory=dict)
    """Entry point's value → its instrumentor, which instrument() has switched on."""
    adapters: dict[str, Any] = field(default_factory=dict)
    """Name of a framework that traces by means of its own → what our adapter has added to the framework."""


state = register(State())
