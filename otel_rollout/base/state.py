"""Register the variables of the process: each package holds its own in one object.

Modules hold constants, loggers and context keys. A variable that changes during a program is a field of its
package's state, in ``state.py``. ``tests/test_process_state.py`` names the few exceptions. Reading
``state.off`` takes as many bytecode instructions as reading a variable of another module.
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
    """The variables of a package; each field has an initial value."""

    def __reduce__(self) -> str:
        """Pickle a reference, so that a function pickled by value uses the state of the receiving process."""
        return "state"


_RoomState = TypeVar("_RoomState", bound=RoomState)
_states: Final[list[RoomState]] = []
"""The states of the packages that this process has imported."""


def register(state: _RoomState) -> _RoomState:
    """Register a package's state for :func:`reset`, and return the state.

    The module's variable for the state must be named ``state``.
    """
    _states.append(state)
    return state


def reset(*, after_fork: bool = False) -> None:
    """Reset the fields of every state, except wired ones; after a fork, only ``PER_PROCESS`` fields."""
    for state in _states:
        initial = type(state)()
        for variable in fields(state):
            if "is_wired" in variable.metadata:
                continue
            if not after_fork or "is_per_process" in variable.metadata:
                setattr(state, variable.name, getattr(initial, variable.name))


def do_nothing() -> None:
    """Do nothing, in place of a hook that a higher package has not set yet."""


@dataclass(slots=True)
class State(RoomState):
    """The messages that this process has logged, and does not repeat."""

    reported: set[str] = field(default_factory=set)


state = register(State())
