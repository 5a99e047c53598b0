"""Instrument a worker of a Ray job."""

from __future__ import annotations

import os

from otel_rollout import settings_reader
from otel_rollout._state import process
from otel_rollout.base.patching import Patches
from otel_rollout.propagation import (
    http_clients,
    process_pools,
    ray_incoming_calls,
    ray_later_runs,
    ray_outgoing_calls,
    ray_private_api,
    thread_pools,
)


def instrument_worker() -> None:
    """Instrument a worker of an instrumented driver; the setup hook calls this.

    Raises:
        UnsupportedRay: when Ray lacks a private name that the patches need.
    """
    with process.instrument_lock:
        if process.patches is not None:
            return
        names = ray_private_api.look_up()
        patches = Patches()
        try:
            ray_incoming_calls.install(names, patches)
            ray_outgoing_calls.install(names, patches)
            process_pools.install(patches)
            thread_pools.install()
            http_clients.install()
            ray_later_runs.set_first_run(settings_reader.inherited(os.environ).get("run_id", ""))
        except Exception:
            patches.undo()
            raise
        process.patches = patches
    process.switch_on_instrumentors()
