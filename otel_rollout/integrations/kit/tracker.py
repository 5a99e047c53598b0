"""Take names and runs from the tracker to which a trainer reports.

Most trainers start the tracker's run after their workers, and tell no other process the run's id.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import otel_rollout


def unless_set(variable: str, name: Any) -> str | None:
    """Return the trainer's name of a project or experiment; None without one, or if ``variable`` is set."""
    return None if os.environ.get(variable) or not name else str(name)


def active_runs(mlflow: bool, wandb_run: Any = None) -> dict[str, str]:
    """Return the tracker's runs in this process, as arguments for :func:`otel_rollout.publish_run`.

    Args:
        mlflow: whether the trainer reports to MLflow, whose active run is returned.
        wandb_run: the run of W&B to which the trainer reports, or None. A run that is disabled, or that is
            offline and has no entity, has no address.
    """
    runs = {}
    active = sys.modules["mlflow"].active_run() if mlflow and "mlflow" in sys.modules else None
    if active is not None:
        runs["mlflow"] = str(active.info.run_id)
    is_online = wandb_run is not None and not getattr(wandb_run, "disabled", False)
    if is_online and wandb_run.entity and wandb_run.project:
        runs["weave"] = f"{wandb_run.entity}/{wandb_run.project}/{wandb_run.id}"
    return runs


def publish_active_runs(mlflow: bool, wandb_run: Any = None) -> None:
    """Link traces to the tracker's runs in this process; the arguments are those of :func:`active_runs`."""
    runs = active_runs(mlflow, wandb_run)
    if runs:
        otel_rollout.publish_run(**runs)
