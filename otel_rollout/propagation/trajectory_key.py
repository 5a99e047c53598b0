"""Make the key with which an agent's requests to a proxy belong to the current trajectory."""

from __future__ import annotations

import os
from typing import Final

from otel_rollout._state import process
from otel_rollout.base import trajectory_key
from otel_rollout.base.errors import internal_errors, warn_once
from otel_rollout.base.given import reading, text_given
from otel_rollout.propagation import carrier

_NOT_RECORDED: Final = "00-{}-{}-00"
_OUTSIDE: Final = (
    "trajectory_key() was called outside a trajectory, for example in a thread that does not carry the "
    "context, so the agent is not recorded"
)


def make(secret: str) -> str:
    """Return the key of the current trajectory; see :func:`otel_rollout.trajectory_key`. Never raises."""
    traceparent = None
    with internal_errors("making the key of a trajectory"):
        traceparent = (carrier.inject_span() or {}).get("traceparent")
        if traceparent is None and process.current_runtime() is not None:
            warn_once(_OUTSIDE)
    if traceparent is None:  # the agent runs also without tracing
        traceparent = _NOT_RECORDED.format(os.urandom(16).hex(), os.urandom(8).hex())
    known = ""  # no proxy accepts a key that was made with it
    with reading("secret=", "trajectory_key() made a key that the proxy refuses"):
        known = text_given(secret)
    return trajectory_key.signed(traceparent, known)
