"""Remember a training batch's mask before verl rejects tokens whose policies differ.

Both trainers call this function. It replaces the mask, so a rejected trajectory could not be told from one
without tokens afterwards.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from otel_rollout.integrations.kit.seams import before
from otel_rollout.integrations.verl.known_trajectories import note_generated_mask
from otel_rollout.integrations.verl.patched_modules import seams
from otel_rollout.integrations.verl.trace_config import is_recorded_here


def install(module: ModuleType) -> None:
    """Wrap the function that rejects tokens (``verl.trainer.ppo.rollout_corr_helper``)."""
    seams.wrap(
        module,
        "compute_rollout_correction_and_add_to_batch",
        before(_note_mask, "reading the mask of a training batch"),
        "trajectories that rollout_correction rejects are recorded as ones without tokens",
    )


def _note_mask(batch: Any, *_: Any, **__: Any) -> None:
    if is_recorded_here():
        note_generated_mask(batch)
