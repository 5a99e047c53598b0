"""Name the experiment after the trainer's run, and link traces to the run of its tracker.

transformers' callbacks start the MLflow or W&B run that ``report_to`` names in the first process of the
training, when training begins, and tell no other process the run's id. Trackio's runs have no address that an
exporter could link to.
"""

from __future__ import annotations

import os
from typing import Any, Final

from otel_rollout.integrations.kit.tracker import publish_active_runs
from otel_rollout.integrations.trl.patched_modules import seams
from otel_rollout.record.recording.state import state as recording
from otel_rollout.record.runs import membership
from otel_rollout.record.runs.state import state as runs

_VARIABLE: Final = "OTEL_ROLLOUT_EXPERIMENT"
_CALLBACKS: Final = "transformers.integrations.integration_utils"


@seams.before(
    "trl.trainer.base_trainer", "_BaseTrainer.__init__", "the experiment is not named after run_name"
)
def _name_experiment(_: Any, *args: Any, **kwargs: Any) -> None:
    name = getattr(kwargs.get("args"), "run_name", None)
    if not name or os.environ.get(_VARIABLE) or recording.runtime is not None or runs.is_over:
        return
    if membership.decide().experiment_name:
        return
    os.environ[_VARIABLE] = str(name)  # for processes that this one starts
    membership.configure({"experiment_name": str(name)}, joins=True)


@seams.after(_CALLBACKS, "MLflowCallback.setup", "traces are not linked to the run of MLflowCallback")
def _publish_mlflow(_: None, callback: Any, args: Any, state: Any, *__: Any, **___: Any) -> None:
    publish_active_runs(mlflow=bool(state.is_world_process_zero))


@seams.after(_CALLBACKS, "WandbCallback.setup", "traces are not linked to the run of WandbCallback")
def _publish_wandb(_: None, callback: Any, args: Any, state: Any, *__: Any, **___: Any) -> None:
    run = getattr(callback._wandb, "run", None) if state.is_world_process_zero else None
    publish_active_runs(mlflow=False, wandb_run=run)
