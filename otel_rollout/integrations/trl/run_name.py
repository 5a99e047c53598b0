"""Take the experiment's name from the trainer's ``run_name``, as its trackers do."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, Final

from otel_rollout._state import process
from otel_rollout.integrations.kit.seams import before
from otel_rollout.integrations.trl.patched_modules import seams
from otel_rollout.runs import membership

_VARIABLE: Final = "OTEL_ROLLOUT_EXPERIMENT"


def install(module: ModuleType) -> None:
    """Wrap the constructor of TRL's trainers (``trl.trainer.base_trainer``)."""
    naming = before(_name_experiment, "naming the experiment after the trainer's run")
    seams.wrap(module, "_BaseTrainer.__init__", naming, "the experiment is not named after run_name")


def _name_experiment(_: Any, *args: Any, **kwargs: Any) -> None:
    name = getattr(kwargs.get("args"), "run_name", None)
    if not name or os.environ.get(_VARIABLE) or process.runtime is not None or process.is_over:
        return
    if membership.decide().experiment_name:
        return
    os.environ[_VARIABLE] = str(name)  # for processes that this one starts
    membership.configure({"experiment_name": str(name)}, joins=True)
