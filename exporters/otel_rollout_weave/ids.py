"""Make ids of Weave's calls and feedback, and name the attribute for the id of a rollout run.

Each process makes equal ids for a span.
"""

from __future__ import annotations

import hashlib
from typing import Final

from otel_rollout.otlp.span import Span

RUN_ID_ATTRIBUTE: Final = "rollout_run_id"
"""Attribute of every call with the id of its rollout run, the resource's ``rollout.run.id``."""


def uuid_of(key: str) -> str:
    """Make a UUID from a hash of a key, in the format of version 4."""
    digits = hashlib.sha256(key.encode(errors="replace")).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"


def call_id_of(trace_id: str, span_id: str) -> str:
    """Make a call's id from trace and span id; span ids alone could collide."""
    return uuid_of(f"{trace_id}/{span_id}")


def marker_id_of(root: Span) -> str:
    """Make the id of the call that shows a trajectory while it runs.

    The marker is a separate call, deleted when the trajectory's call is written. Weave can add only output
    and end to a stored call, so the marker cannot become the trajectory's call.
    """
    return uuid_of(f"{root.trace_id}/{root.span_id}/running")
