"""Instrument a worker of a Ray job."""

from __future__ import annotations

import os

from otel_rollout import settings_reader
from otel_rollout.base.patching import Patches
from otel_rollout.record.propagation import (
    http_clients,
    process_pools,
    ray_calls,
    ray_later_runs,
    thread_pools,
)
from otel_rollout.record.propagation.state import state
from otel_rollout.record.recording.state import state as recording
from otel_rollout.record.runs.state import state as runs


def instrument_worker() -> None:
    """Instrument a worker of an instrumented driver; the setup hook calls this.

    The job's own hook runs before, and may have called ``instrument()``.

    Raises:
        UnsupportedRay: when Ray lacks a private name that the patches need.
    """
    with state.instrument_lock:
        ray_calls.patch()
        runs.is_receiver = True
        if state.patches is None:
            state.patches = Patches()
            process_pools.install(state.patches)
            thread_pools.install()
            http_clients.install()
        ray_later_runs.set_first_run(settings_reader.inherited(os.environ).get("run_id", ""))
    recording.switch_on_instrumentors()
