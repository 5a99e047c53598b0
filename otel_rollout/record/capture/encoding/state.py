"""Hold the variable of encoding."""

from __future__ import annotations

from dataclasses import dataclass

from otel_rollout.base.state import RoomState, register


@dataclass(slots=True)
class State(RoomState):
    """What the sizes of earlier values say about the next."""

    values_to_measure: int = 0
    """Number of next values to measure before encoding, after a value was larger than its limit."""


state = register(State())
