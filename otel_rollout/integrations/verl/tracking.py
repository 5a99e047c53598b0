"""Link traces to the MLflow or W&B run that verl's ``trainer.logger`` starts.

verl starts that run in the trainer's process, after its workers, and tells no other process the run's id.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import otel_rollout
from otel_rollout.integrations.kit.seams import after
from otel_rollout.integrations.verl.patched_modules import seams


def install(module: ModuleType) -> None:
    """Wrap the constructor that starts runs (``verl.utils.tracking``)."""
    publishing = after(_publish_runs, "linking traces to verl's run")
    seams.wrap(module, "Tracking.__init__", publishing, "traces are not linked to the MLflow or W&B run")


def _publish_runs(_: None, tracking: Any, *__: Any, **___: Any) -> None:
    runs = _runs_of(getattr(tracking, "logger", {}))
    if runs:
        otel_rollout.publish_run(**runs)


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
