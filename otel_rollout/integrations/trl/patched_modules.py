"""List TRL's modules that are patched, and the modules that patch them."""

from __future__ import annotations

from typing import Final

from otel_rollout.integrations.kit.seams import Seams

seams: Final = Seams("trl", "otel_rollout.integrations.trl")

CONFIGURED: Final = {
    "trl.experimental.async_grpo.async_rollout_worker": (".async_worker",),
    "transformers.integrations.integration_utils": (".tracking",),
    "trl.trainer.base_trainer": (".run_name",),
}
"""Patches of a process whose environment configures tracing."""
