"""Register the variables of the process: each room holds its own in one object.

Modules hold constants, loggers and context keys; a variable that changes during a program is a field of its
room's state, in ``state.py``. ``tests/test_process_state.py`` names the few exceptions. Reading ``state.off``
takes as many bytecode instructions as reading a variable of another module.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final, TypeVar

PER_PROCESS: Final = {"is_per_process": True}
"""Marks a field that a forked child does not take over from its parent."""
WIRED: Final = {"is_wired": True}
"""Marks a field that is set when modules are imported, and that :func:`reset` leaves alone."""


@dataclass(slots=True)
class RoomState:
    """The variables of a room; each field has an initial value."""

    def __reduce__(self) -> str:
        """Pickle a reference: a function pickled by value uses the state of its receiver."""
        return "state"


_RoomState = TypeVar("_RoomState", bound=RoomState)
_states: Final[list[RoomState]] = []
"""The states of the rooms that this process has imported."""


def register(state: _RoomState) -> _RoomState:
    """Let :func:`reset` reset a room's state; return the state, which its module names ``state``."""
    _states.append(state)
    return state


def reset(*, after_fork: bool = False) -> None:
    """Reset every field of every room; after a fork, only fields that a child does not take over."""
    for state in _states:
        initial = type(state)()
        for variable in fields(state):
            if "is_wired" in variable.metadata:
                continue
            if not after_fork or "is_per_process" in variable.metadata:
                setattr(state, variable.name, getattr(initial, variable.name))


def do_nothing() -> None:
    """Do nothing: the hook that an upper room has not set yet."""


@dataclass(slots=True)
class State(RoomState):
    """What is logged once per process."""

    reported: set[str] = field(default_factory=set)


state = register(State())
