"""Read verl's trace configuration; store and read who records operations."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any, Final

from otel_rollout.record import runtime
from otel_rollout.record.recording.state import state

_MODULE: Final = "verl.utils.rollout_trace"
_ATTRIBUTE: Final = "_otel_rollout_recorded_by"
"""Attribute of verl's configuration object that holds a RecordedBy."""


class RecordedBy(Enum):
    """The code that records the operations marked by verl."""

    OTEL_ROLLOUT = "otel-rollout"
    VERL = "verl's own code"
    NOBODY = "nobody"


def config() -> Any:
    """Return this process's ``RolloutTraceConfig``; None if verl's module is missing."""
    module = sys.modules.get(_MODULE)
    return None if module is None else module.RolloutTraceConfig.get_instance()


def set_recorded_by(trace_config: Any, recorded_by: RecordedBy) -> None:
    """Store the decision in verl's configuration object."""
    setattr(trace_config, _ATTRIBUTE, recorded_by)


def recorded_by() -> RecordedBy:
    """Return which code records operations.

    Until verl reads its configuration, the environment decides.
    """
    decided = getattr(config(), _ATTRIBUTE, RecordedBy.OTEL_ROLLOUT)
    if decided is RecordedBy.OTEL_ROLLOUT and state.off:
        return RecordedBy.NOBODY
    return decided if isinstance(decided, RecordedBy) else RecordedBy.OTEL_ROLLOUT


def is_recorded_here() -> bool:
    """Return whether this package records in this process. Never raises."""
    return recorded_by() is RecordedBy.OTEL_ROLLOUT and runtime.current() is not None
