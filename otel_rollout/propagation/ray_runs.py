"""A job's workers follow the driver into its next run.

They are started with the settings of one run. Once the driver records another, its calls name that, and a
worker that is called fetches its settings from Ray's control store, where the driver has put them. A worker
names the run in its own calls.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final

import orjson

from otel_rollout._state import process
from otel_rollout.base.environment import PREFIXES
from otel_rollout.runs import membership
from otel_rollout.settings import CONFIG_VARIABLE

RUN_KEY: Final = "otel-rollout-run"
"""Entry of a carrier that names the run."""
_NAMESPACE: Final = b"otel-rollout"
_NOT_SENT: Final = (CONFIG_VARIABLE, "OTEL_ROLLOUT_NODE")
"""Variables that are sent apart, or that each machine has for itself."""

_logger = logging.getLogger("otel_rollout")


def begin(run_id: str) -> None:
    """Note the run that this job's workers are started with."""
    process.run_of_workers = run_id
    process.published_runs.clear()


def is_to_be_named() -> bool:
    """Whether calls have to name the run, since workers were started with another."""
    run_id = membership.run_id()
    return bool(run_id and process.run_of_workers) and run_id != process.run_of_workers


def run_to_name() -> str | None:
    """Return the run that a call has to name; None where its receiver knows."""
    if not is_to_be_named():
        return None
    run_id = membership.run_id()
    if run_id not in process.published_runs:
        run_id = membership.settle_for_workers().run_id
        process.published_runs.add(run_id)
        _publish(run_id)
    return run_id


def _publish(run_id: str) -> None:
    from ray.experimental import internal_kv

    variables = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(PREFIXES) and name not in _NOT_SENT
    }
    told = {"config": os.environ.get(CONFIG_VARIABLE, ""), "variables": variables}
    internal_kv._internal_kv_put(run_id.encode(), orjson.dumps(told), namespace=_NAMESPACE)


def forget() -> None:
    """Remove the settings of runs from Ray's control store: they may hold credentials."""
    from ray.experimental import internal_kv

    while process.published_runs:
        internal_kv._internal_kv_del(process.published_runs.pop().encode(), namespace=_NAMESPACE)


def follow(run_id: str) -> None:
    """Record into a run from here on, if this process does not already."""
    if run_id == membership.run_id() or run_id in process.unknown_runs:
        return
    told = _told(run_id)
    if told is None:
        process.unknown_runs.add(run_id)
        _logger.warning(
            "otel-rollout: this worker was called from the run %s, whose settings cannot be had; it goes on "
            "recording into %s. Call ray.shutdown() and ray.init() between two runs.",
            run_id,
            membership.run_id(),
        )
        return
    membership.join(told["config"], told["variables"])
    process.published_runs.add(run_id)  # as the driver has done: the calls of this worker name it as well


def _told(run_id: str) -> Any:
    from ray.experimental import internal_kv

    found = internal_kv._internal_kv_get(run_id.encode(), namespace=_NAMESPACE)
    return orjson.loads(found) if found else None
