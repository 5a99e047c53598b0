"""List TRL's modules that are patched, and the modules that patch them."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from otel_rollout.integrations.kit.seams import Seams

seams: Final = Seams("trl", "otel_rollout.integrations.trl")

CONFIGURED: Final = {
    "trl.extras.profiling": (".timing",),
    "trl.trainer.grpo_trainer": (".trajectory", ".generation", ".tool_loop", ".rewards", ".loss"),
    "trl.trainer.rloo_trainer": (".trajectory", ".generation", ".rewards", ".loss"),
    "trl.trainer.base_trainer": (".run_name",),
    "trl.experimental.async_grpo.async_rollout_worker": (".async_worker",),
    "trl.experimental.async_grpo.async_grpo_trainer": (".async_training",),
    "transformers.integrations.integration_utils": (".tracking",),
    "transformers.trainer": (".training_end",),
}
"""Patches of a process whose environment configures tracing."""

_CLASSES: Final = {"trl.trainer.grpo_trainer": "GRPOTrainer", "trl.trainer.rloo_trainer": "RLOOTrainer"}


def trainer_class(module: ModuleType) -> str:
    """Return the name of the trainer's class in one of TRL's modules."""
    return _CLASSES[module.__name__]
