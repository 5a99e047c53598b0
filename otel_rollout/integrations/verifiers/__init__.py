"""Trace verifiers' rollouts without an edit to verifiers, to an environment or to a command.

Importing this package imports no module of verifiers; each is patched when verifiers imports it.
"""

from __future__ import annotations

from typing import Final

from otel_rollout.integrations.kit.seams import Seams

seams: Final = Seams("verifiers", "otel_rollout.integrations.verifiers")

CONFIGURED: Final = {
    "verifiers.v1.utils.decorators": (".scores",),
    "verifiers.v1.judge": (".scores",),
    "verifiers.v1.trace": (".scores",),
    "verifiers.v1.episode": (".scores",),
    "verifiers.v1.interception.server": (".model_calls",),
    "verifiers.v1.rollout": (".lifecycle",),
    "verifiers.v1.env": (".episodes",),
    "verifiers.v1.serve.server": (".episodes",),
    "verifiers.v1.serve.client": (".episodes",),
    "verifiers.v1.cli.eval.runner": (".episodes",),
}
"""Patches of a process whose environment configures tracing. Any other process is left alone."""

seams.install(CONFIGURED, {})
