"""Trace TRL's rollouts without an edit to TRL or to a training script.

Importing this package imports no module of TRL's.
"""

from otel_rollout.integrations.trl.patched_modules import CONFIGURED, seams

seams.install(CONFIGURED, {})
