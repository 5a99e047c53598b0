"""Link traces to the MLflow or W&B run that the trainer's ``report_to`` starts.

The callbacks of transformers start these runs when training begins, in the main process.
"""

from __future__ import annotations

import sys
from typing import Any

import otel_rollout
from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.kit.tracker import active_runs
from otel_rollout.integrations.trl.identity import progress_of


@internal_errors("linking traces to the trainer's run")
def publish_runs(trainer: Any) -> None:
    """Publish the runs that the trainer reports to, unless they are published. Never raises."""
    report_to, progress = trainer.args.report_to, progress_of(trainer)
    wandb_run = getattr(sys.modules.get("wandb"), "run", None) if "wandb" in report_to else None
    runs = active_runs("mlflow" in report_to, wandb_run)
    if runs and runs != progress.published:
        progress.published = runs
        otel_rollout.publish_run(**runs)
