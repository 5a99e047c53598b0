"""Follow verl's trace configuration: choose exporters by its flag, and decide who records operations.

The flag is ``actor_rollout_ref.rollout.trace.backend`` in verl's configuration. Its value is a list of
exporters' names with commas between them, or :data:`ENVIRONMENT`, or :data:`VERLS_OWN`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from otel_rollout import settings_reader
from otel_rollout.base.errors import logger
from otel_rollout.base.setting_parsers import listed
from otel_rollout.integrations.verl import seams
from otel_rollout.record import runtime
from otel_rollout.record.recording.state import state
from otel_rollout.record.runs import membership
from otel_rollout.settings import SettingsError

_MODULE: Final = "verl.utils.rollout_trace"
ENVIRONMENT: Final = "otel"
"""Backend for the exporters that OTEL_TRACES_EXPORTER names."""
VERLS_OWN: Final = "trackio"
"""Backend for which verl's own code records."""
DEFAULT_MLFLOW_URI: Final = "sqlite:////tmp/mlruns.db"
"""verl's default tracking URI; verl's ``trainer.logger=mlflow`` writes the training run there as well."""

Exporters = dict[str, dict[str, Any]]
"""Name of an exporter → its options."""


def exporters_for(backend: str | None) -> Exporters:
    """Return the exporters that flag and environment ask for; empty for no tracing.

    The flag wins over the environment. Log a missing exporter, and a flag that contradicts the environment.
    """
    configured, _ = settings_reader.from_environment(os.environ)
    environment = {name: dict(options) for name, options in configured.exporters.items()}
    if configured.sdk_disabled:
        return {}
    flag = (backend or "").strip()
    if not flag:
        return environment
    if flag == ENVIRONMENT:
        if not environment:
            logger.error(
                "otel-rollout: trace.backend=otel means the exporters of OTEL_TRACES_EXPORTER, which is not "
                "set: nothing is traced. Set OTEL_TRACES_EXPORTER, to mlflow for example."
            )
        return environment
    if flag == VERLS_OWN:
        over = f", over OTEL_TRACES_EXPORTER={','.join(environment)}" if environment else ""
        logger.warning("otel-rollout: trace.backend=trackio is left to verl's own code%s.", over)
        return {}
    return _exporters_named(flag, environment)


def _exporters_named(flag: str, environment: Exporters) -> Exporters:
    chosen = {name: environment.get(name, {}) for name in listed(flag)}
    try:
        membership.check_exporters(chosen)
    except SettingsError as error:
        logger.error("otel-rollout: nothing is traced by trace.backend=%s: %s", flag, error)
        return {}
    if environment and environment.keys() != chosen.keys():
        logger.warning(
            "otel-rollout: the flag wins: traces go to trace.backend=%s, not to OTEL_TRACES_EXPORTER=%s.",
            flag,
            ",".join(environment),
        )
    return chosen


def with_default_target(exporters: Mapping[str, Mapping[str, Any]]) -> Exporters:
    """Return the exporters; an MLflow exporter without a URI gets verl's default."""
    targeted = {name: dict(options) for name, options in exporters.items()}
    mlflow = targeted.get("mlflow")
    if mlflow is not None and "tracking_uri" not in mlflow and not os.environ.get("MLFLOW_TRACKING_URI"):
        mlflow["tracking_uri"] = DEFAULT_MLFLOW_URI
        logger.warning(
            "otel-rollout: MLFLOW_TRACKING_URI is not set. Traces of all nodes go where verl writes runs, "
            "to %s on this machine.",
            DEFAULT_MLFLOW_URI,
        )
    return targeted


# --- where it is too late to follow the flag ---------------------------------------------------------------


@seams.before(_MODULE, "RolloutTraceConfig.init", "the flag trace.backend is left to verl's own code")
def _warn(cls: Any, *args: Any, **kwargs: Any) -> None:
    backend = kwargs.get("backend", args[2] if len(args) > 2 else None)
    if backend not in (None, "trackio") and not cls.get_instance()._initialized:
        logger.warning(
            "otel-rollout: trace.backend=%s is left to verl %s's own tracing: no driver of a training "
            "has read the flag before Ray was started or verl's trace was used. "
            "Set OTEL_TRACES_EXPORTER=%s in the driver's environment instead.",
            backend,
            seams.version,
            backend,
        )


# --- who records operations ---------------------------------------------------------------------------------


_ATTRIBUTE: Final = "_otel_rollout_recorded_by"
"""Attribute of verl's configuration object that holds a RecordedBy."""


class RecordedBy(Enum):
    """The code that records the operations marked by verl."""

    OTEL_ROLLOUT = "otel-rollout"
    VERL = "verl's own code"
    NOBODY = "nobody"


def config() -> Any:
    """Return this process's ``RolloutTraceConfig``; None if verl's module is missing."""
    module = sys.modules.get(_MODULE)
    return None if module is None else module.RolloutTraceConfig.get_instance()


def set_recorded_by(trace_config: Any, recorded_by: RecordedBy) -> None:
    """Store the decision in verl's configuration object."""
    setattr(trace_config, _ATTRIBUTE, recorded_by)


def recorded_by() -> RecordedBy:
    """Return which code records operations.

    Until verl reads its configuration, the environment decides.
    """
    decided = getattr(config(), _ATTRIBUTE, RecordedBy.OTEL_ROLLOUT)
    if decided is RecordedBy.OTEL_ROLLOUT and state.off:
        return RecordedBy.NOBODY
    return decided if isinstance(decided, RecordedBy) else RecordedBy.OTEL_ROLLOUT


def is_recorded_here() -> bool:
    """Return whether this package records in this process. Never raises."""
    return recorded_by() is RecordedBy.OTEL_ROLLOUT and runtime.current() is not None
