"""Hold the variables of forwarders and exits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from otel_rollout.base.state import PER_PROCESS, RoomState, register
from otel_rollout.record.runs.state import EndedRun


@dataclass(slots=True)
class State(RoomState):
    """The run that this process has ended, and the successors of forwarders that it has started."""

    is_exiting: bool = False
    ended_run: EndedRun | None = field(default=None, metadata=PER_PROCESS)
    successor_starts: dict[Path, list[float]] = field(default_factory=dict, metadata=PER_PROCESS)
    """Node directory → monotonic times at which this process started a successor of its forwarder."""


state = register(State())
