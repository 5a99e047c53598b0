"""Warn if verl's flag asks for tracing when it is too late to configure it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_rollout.integrations.verl.patched_modules import seams

_logger = logging.getLogger("otel_rollout")


def install(module: ModuleType) -> None:
    """Wrap ``RolloutTraceConfig.init``, which reads the flag."""
    seams.wrap(
        module, "RolloutTraceConfig.init", _with_warning, "the flag trace.backend is left to verl's own code"
    )


def _with_warning(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(cls: Any, *args: Any, **kwargs: Any) -> Any:
        backend = kwargs.get("backend", args[2] if len(args) > 2 else None)
        if backend not in (None, "trackio") and not cls.get_instance()._initialized:
            _logger.warning(
                "otel-rollout: trace.backend=%s is left to verl %s's own tracing: Ray was started before the "
                "flag could be read. Set OTEL_TRACES_EXPORTER=%s in the driver's environment instead.",
                backend,
                seams.version,
                backend,
            )
        return original(cls, *args, **kwargs)

    return init
