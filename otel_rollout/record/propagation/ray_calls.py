"""Patch Ray's calls in this process: those that it sends, and those that it receives."""

from __future__ import annotations

from otel_rollout.base.patching import Patches
from otel_rollout.record.propagation import ray_incoming_calls, ray_outgoing_calls, ray_private_api
from otel_rollout.record.propagation.state import state


def patch() -> None:
    """Patch outgoing and incoming calls, both or neither; a second call does nothing.

    The caller holds ``state.instrument_lock``.

    Raises:
        UnsupportedRay: when Ray lacks a private name that the patches need.
    """
    if state.ray_patches is not None:
        return
    names = ray_private_api.look_up()
    patches = Patches()
    try:
        ray_incoming_calls.install(names, patches)
        ray_outgoing_calls.install(names, patches)
    except Exception:
        patches.undo()
        raise
    state.ray_patches = patches
