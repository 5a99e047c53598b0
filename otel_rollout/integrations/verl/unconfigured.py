"""Warn if verl's flag asks for tracing when it is too late to configure it."""

from __future__ import annotations

import logging
from typing import Any

from otel_rollout.integrations.verl.patched_modules import seams

_logger = logging.getLogger("otel_rollout")


@seams.before(
    "verl.utils.rollout_trace",
    "RolloutTraceConfig.init",
    "the flag trace.backend is left to verl's own code",
)
def _warn(cls: Any, *args: Any, **kwargs: Any) -> None:
    backend = kwargs.get("backend", args[2] if len(args) > 2 else None)
    if backend not in (None, "trackio") and not cls.get_instance()._initialized:
        _logger.warning(
            "otel-rollout: trace.backend=%s is left to verl %s's own tracing: no driver of a training "
            "has read the flag before Ray was started or verl's trace was used. "
            "Set OTEL_TRACES_EXPORTER=%s in the driver's environment instead.",
            backend,
            seams.version,
            backend,
        )
