"""List TRL's modules that are patched, and the modules that patch them."""

from __future__ import annotations

from typing import Final

from otel_rollout.integrations.kit.seams import Seams

seams: Final = Seams("trl", "otel_rollout.integrations.trl")

TRAINERS: Final = {"trl.trainer.grpo_trainer": "GRPOTrainer", "trl.trainer.rloo_trainer": "RLOOTrainer"}
"""TRL's module → class of the trainer in it."""
CONFIGURED: Final = {
    "trl.extras.profiling": (".batch",),
    "trl.trainer.grpo_trainer": (".trajectory", ".generation", ".tool_loop", ".rewards", ".loss"),
    "trl.trainer.rloo_trainer": (".trajectory", ".generation", ".rewards", ".loss"),
    "trl.trainer.base_trainer": (".tracking",),
    "transformers.integrations.integration_utils": (".tracking",),
    "transformers.trainer": (".loss",),
}
"""Patches of a process whose environment configures tracing."""
