"""Link traces to the MLflow or W&B run that the trainer's ``report_to`` starts.

The callbacks of transformers start these runs when training begins, in the main process.
"""

from __future__ import annotations

import sys
from typing import Any

import otel_rollout
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.trl.identity import progress_of


@internal_errors("linking traces to the trainer's run")
def publish_runs(trainer: Any) -> None:
    """Publish the runs that the trainer reports to, unless they are published. Never raises."""
    runs, progress = _runs_of(trainer.args.report_to), progress_of(trainer)
    if runs and runs != progress.published:
        progress.published = runs
        otel_rollout.publish_run(**runs)


def _runs_of(report_to: Any) -> dict[str, str]:
    """Return the runs that are active, with the arguments of :func:`otel_rollout.publish_run`."""
    runs = {}
    if "mlflow" in report_to and "mlflow" in sys.modules:
        active = sys.modules["mlflow"].active_run()
        if active is not None:
            runs["mlflow"] = str(active.info.run_id)
    run = getattr(sys.modules.get("wandb"), "run", None) if "wandb" in report_to else None
    if run is not None and run.entity and run.project:
        runs["weave"] = f"{run.entity}/{run.project}/{run.id}"
    return runs
