"""Link traces to the MLflow or W&B run that ``report_to`` starts.

transformers' callbacks start that run in the first process of the training, when training begins, and tell no
other process the run's id. Trackio's runs have no address that an exporter could link to.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

import otel_rollout
from otel_rollout.integrations.kit.seams import Seams, after

_seams: Final = Seams("transformers", "otel_rollout.integrations.trl")


def install(module: ModuleType) -> None:
    """Wrap the methods that start runs (``transformers.integrations.integration_utils``)."""
    for callback, publish in (("MLflowCallback", _publish_mlflow), ("WandbCallback", _publish_wandb)):
        _seams.wrap(
            module,
            f"{callback}.setup",
            after(publish, "linking traces to the trainer's run"),
            f"traces are not linked to the run of {callback}",
        )


def _publish_mlflow(_: None, callback: Any, args: Any, state: Any, *__: Any, **___: Any) -> None:
    mlflow = sys.modules.get("mlflow")
    active = mlflow.active_run() if mlflow is not None and state.is_world_process_zero else None
    if active is not None:
        otel_rollout.publish_run(mlflow=str(active.info.run_id))


def _publish_wandb(_: None, callback: Any, args: Any, state: Any, *__: Any, **___: Any) -> None:
    run = getattr(callback._wandb, "run", None) if state.is_world_process_zero else None
    if run is None or getattr(run, "disabled", False):
        return
    if run.entity and run.project:  # offline, the entity may be unknown
        otel_rollout.publish_run(weave=f"{run.entity}/{run.project}/{run.id}")
