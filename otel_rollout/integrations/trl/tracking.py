"""Link traces to the MLflow or W&B run that ``report_to`` starts.

transformers' callbacks start that run in the first process of the training, when training begins, and tell no
other process the run's id. Trackio's runs have no address that an exporter could link to.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import otel_rollout
from otel_rollout.integrations.kit.seams import Seams, after
from otel_rollout.integrations.kit.tracker import active_runs

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
    _publish(active_runs(mlflow=bool(state.is_world_process_zero)))


def _publish_wandb(_: None, callback: Any, args: Any, state: Any, *__: Any, **___: Any) -> None:
    run = getattr(callback._wandb, "run", None) if state.is_world_process_zero else None
    _publish(active_runs(mlflow=False, wandb_run=run))


def _publish(runs: dict[str, str]) -> None:
    if runs:
        otel_rollout.publish_run(**runs)
