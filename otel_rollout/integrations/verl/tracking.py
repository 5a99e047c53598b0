"""Link traces to the MLflow or W&B run that verl's ``trainer.logger`` starts.

verl starts that run in the trainer's process, after it has started its workers, and tells no other process.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import otel_rollout
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.verl.patched_modules import seams


def install(module: ModuleType) -> None:
    """Wrap the constructor that starts runs (``verl.utils.tracking``)."""
    seams.wrap(
        module, "Tracking.__init__", _publishing_runs, "traces are not linked to the MLflow or W&B run"
    )


def _publishing_runs(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with internal_errors("linking traces to verl's run"):
            runs = _runs_of(getattr(self, "logger", {}))
            if runs:
                otel_rollout.publish_run(**runs)

    return __init__


def _runs_of(loggers: dict[str, Any]) -> dict[str, str]:
    """Return the runs that verl's loggers have started, by tracker.

    The result has the arguments of :func:`otel_rollout.publish_run`.
    """
    runs = {}
    if "mlflow" in loggers:
        active = sys.modules["mlflow"].active_run()
        if active is not None:
            runs["mlflow"] = str(active.info.run_id)
    run = getattr(loggers.get("wandb"), "run", None)
    if run is not None and run.entity and run.project:
        runs["weave"] = f"{run.entity}/{run.project}/{run.id}"
    return runs
