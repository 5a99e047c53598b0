"""Link traces to the MLflow or W&B run that verl's ``trainer.logger`` starts.

verl starts that run in the trainer's process, after its workers, and tells no other process the run's id.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import otel_rollout
from otel_rollout.integrations.kit.seams import after
from otel_rollout.integrations.kit.tracker import active_runs
from otel_rollout.integrations.verl.patched_modules import seams


def install(module: ModuleType) -> None:
    """Wrap the constructor that starts runs (``verl.utils.tracking``)."""
    publishing = after(_publish_runs, "linking traces to verl's run")
    seams.wrap(module, "Tracking.__init__", publishing, "traces are not linked to the MLflow or W&B run")


def _publish_runs(_: None, tracking: Any, *__: Any, **___: Any) -> None:
    loggers = getattr(tracking, "logger", {})
    runs = active_runs("mlflow" in loggers, getattr(loggers.get("wandb"), "run", None))
    if runs:
        otel_rollout.publish_run(**runs)
