"""Name the experiment after the run of ``vf-eval``, and remember the run's id."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from otel_rollout.integrations.kit.seams import before
from otel_rollout.integrations.kit.tracker import unless_set
from otel_rollout.integrations.verifiers import rollouts
from otel_rollout.integrations.verifiers.patched_modules import seams
from otel_rollout.runs import membership


def install(module: ModuleType) -> None:
    """Wrap the function that runs an evaluation."""
    naming = before(_name_experiment, "naming the experiment of an evaluation")
    seams.wrap(module, "run_eval", naming, "the experiment is not named after the evaluation's run")


def _name_experiment(config: Any) -> None:
    membership.configure({"experiment_name": unless_set("OTEL_ROLLOUT_EXPERIMENT", config.run.name)})
    rollouts.here().run_id = config.run.id
