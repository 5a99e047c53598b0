"""Trace verifiers' rollouts without an edit to verifiers, to an environment or to a command.

Importing this package imports no module of verifiers; each is patched when verifiers imports it.
"""

from otel_rollout.integrations.verifiers.patched_modules import CONFIGURED, seams

seams.install(CONFIGURED, {})
