"""Have a job's workers join the driver's next run.

Workers start with the settings of the driver's first run. When the driver records a later run, it puts that
run's settings into Ray's control store, and its calls carry the run's id. A called worker reads the settings,
joins the run, and carries the id in its own calls.
"""

from __future__ import annotations

import os
from collections.abc import Container
from typing import Final

import orjson

from otel_rollout.base.environment import PREFIXES
from otel_rollout.base.errors import logger
from otel_rollout.record.propagation.state import state
from otel_rollout.record.runs import membership
from otel_rollout.settings import CONFIG_VARIABLE

RUN_KEY: Final = "otel-rollout-run"
"""Entry of a carrier that holds the run's id."""
_NAMESPACE: Final = b"otel-rollout"
_NODE_VARIABLE: Final = "OTEL_ROLLOUT_NODE"
"""Variable that workers do not get from the driver, because its value differs per machine."""


def set_first_run(run_id: str) -> None:
    """Set the run whose settings this job's workers start with; forget the runs published before."""
    state.run_of_workers = run_id
    state.published_runs.clear()


def is_later_run() -> bool:
    """Return whether this process records a later run than the workers' first run."""
    run_id = membership.run_id()
    return bool(run_id and state.run_of_workers) and run_id != state.run_of_workers


def run_id_to_carry() -> str | None:
    """Return the run id that a call has to carry; None if receivers know the run.

    Before the first call of a run, this function publishes the run's settings.
    """
    if not is_later_run():
        return None
    run_id = membership.run_id()
    if run_id not in state.published_runs:
        run_id = membership.settle_for_workers().run_id
        state.published_runs.add(run_id)
        _publish(run_id)
    return run_id


def _publish(run_id: str) -> None:
    from ray.experimental import internal_kv

    variables = variables_to_copy({CONFIG_VARIABLE})
    settings = {"config": os.environ.get(CONFIG_VARIABLE, ""), "variables": variables}
    internal_kv._internal_kv_put(run_id.encode(), orjson.dumps(settings), namespace=_NAMESPACE)


def variables_to_copy(others: Container[str]) -> dict[str, str]:
    """Return the driver's variables that workers need, without ``others``."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(PREFIXES) and name not in others and name != _NODE_VARIABLE
    }


def remove_published() -> None:
    """Remove the settings of runs, with their credentials, from Ray's control store."""
    from ray.experimental import internal_kv

    while state.published_runs:
        internal_kv._internal_kv_del(state.published_runs.pop().encode(), namespace=_NAMESPACE)


def join(run_id: str) -> None:
    """Record into the run ``run_id`` from now on; warn if its settings are missing."""
    if run_id == membership.run_id() or run_id in state.unknown_runs:
        return
    from ray.experimental import internal_kv

    encoded = internal_kv._internal_kv_get(run_id.encode(), namespace=_NAMESPACE)
    if not encoded:
        state.unknown_runs.add(run_id)
        logger.warning(
            "otel-rollout: the run %s called this worker, but Ray's control store has no settings of that "
            "run. The worker still records into %s. Call ray.shutdown() and ray.init() between two runs.",
            run_id,
            membership.run_id(),
        )
        return
    settings = orjson.loads(encoded)
    membership.join(settings["config"], settings["variables"])
    state.published_runs.add(run_id)  # the driver published them; do not publish again
