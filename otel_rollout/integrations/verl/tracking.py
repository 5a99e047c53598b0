"""verl's runs: what ``trainer.logger`` starts, the traces are linked to.

verl starts the run in the trainer's process when its workers exist already, and nobody else knows of it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import otel_rollout
from otel_rollout.base.errors import fault
from otel_rollout.integrations.verl import seams


def install(module: ModuleType) -> None:
    """Wrap what starts runs (``verl.utils.tracking``)."""
    seams.wrap(module, "Tracking.__init__", _starting, "traces are not linked to the MLflow or W&B run")


def _starting(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            runs = _started(getattr(self, "logger", {}))
            if runs:
                otel_rollout.publish_run(**runs)
        except Exception as error:  # noqa: BLE001 - training goes on, its traces unlinked
            fault("linking traces to verl's run", error)

    return __init__


def _started(loggers: dict[str, Any]) -> dict[str, str]:
    """The runs that were started, as :func:`otel_rollout.publish_run` takes them."""
    runs = {}
    if "mlflow" in loggers:
        active = sys.modules["mlflow"].active_run()
        if active is not None:
            runs["mlflow"] = str(active.info.run_id)
    run = getattr(loggers.get("wandb"), "run", None)
    if run is not None and run.entity and run.project:
        runs["weave"] = f"{run.entity}/{run.project}/{run.id}"
    return runs
