"""verl's rollouts, traced without an edit to verl or to a launch script.

verl imports this package by itself, in every process: it is an entry point in group ``verl.plugins``
(verl ≥ 0.9), and for older versions the user names it in ``VERL_USE_EXTERNAL_MODULES``. Importing it imports
nothing of verl's: it waits for the modules it has something to add to (:mod:`.seams`).

Where tracing is not configured, those are the two that read the flag a user may have set
(``actor_rollout_ref.rollout.trace.backend``): in the driver, before Ray is started, and in the worker.
"""

from __future__ import annotations

import sys

from otel_rollout.base.errors import fault
from otel_rollout.integrations.verl import seams
from otel_rollout.runs import membership


def _load() -> None:
    """Arrange for verl to be traced, as far as this process is concerned. Never raises."""
    try:
        if not membership.decide().enabled:
            seams.wait_for(seams.UNCONFIGURED)
            return
        seams.wait_for(seams.ALL)
        if not _in_ray_worker():
            from otel_rollout.propagation.instrument import instrument

            instrument()
    except Exception as error:  # noqa: BLE001 - verl would hide it at DEBUG
        fault("preparing to trace verl", error)


def _in_ray_worker() -> bool:
    """Whether this process was started by Ray: such a one is prepared by the job's setup hook."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)


_load()
