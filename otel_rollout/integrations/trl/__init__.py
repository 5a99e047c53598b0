"""Trace TRL's trainers without an edit to a training script.

Importing this package patches TRL's modules as soon as they are imported, if the environment configures
tracing. It imports neither TRL nor torch.
"""

from otel_rollout.integrations.trl.batch import sample
from otel_rollout.integrations.trl.patched_modules import CONFIGURED, seams

__all__ = ["sample"]

seams.install(CONFIGURED, {})
