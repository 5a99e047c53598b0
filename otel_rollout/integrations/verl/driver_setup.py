"""Configure tracing in verl's driver before Ray starts; workers inherit it."""

from __future__ import annotations

import os
from typing import Any, Final

from otel_rollout.base.errors import internal_errors, logger, warn_once
from otel_rollout.base.patching import Function
from otel_rollout.integrations.kit.tracker import publish_active_runs, unless_set
from otel_rollout.integrations.verl import seams
from otel_rollout.integrations.verl.trace_config import exporters_for, with_default_target
from otel_rollout.integrations.vllm.engines import NEEDS_STATISTICS
from otel_rollout.record.runs import membership
from otel_rollout.settings import SettingsError

_PLUGIN_VARIABLES: Final = ("VERL_USE_EXTERNAL_MODULES", "VERL_USE_EXTERNAL_PLUGINS")
"""Variables that name verl's plugins; workers on other nodes need them too."""


@seams.around(
    "verl.trainer.constants_ppo",
    "get_ppo_ray_runtime_env",
    "trace.backend has no effect on otel-rollout; set OTEL_TRACES_EXPORTER",
)
def _runtime_env(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Configure tracing, and pass on the variables of plugins, right before verl calls ``ray.init``."""
    with internal_errors("setting tracing up from verl's configuration"):
        set_up(*args, **kwargs)
    runtime_env = original(*args, **kwargs)
    with internal_errors("forwarding variables to verl's workers"):
        for name in _PLUGIN_VARIABLES:
            if name in os.environ:
                runtime_env["env_vars"].setdefault(name, os.environ[name])
    return runtime_env


def set_up(config: Any = None) -> None:
    """Configure tracing from verl's configuration and the environment."""
    flags = _trace_flags(config)
    exporters = exporters_for(flags.get("backend"))
    if not exporters:
        return
    try:
        membership.configure(
            {
                "exporters": with_default_target(exporters),
                "project_name": unless_set("OTEL_ROLLOUT_PROJECT", flags.get("project_name")),
                "experiment_name": unless_set("OTEL_ROLLOUT_EXPERIMENT", flags.get("experiment_name")),
            }
        )
    except SettingsError as error:
        logger.error("otel-rollout: verl's trace configuration cannot be used: %s", error)
        return
    from otel_rollout.record.propagation.instrument import instrument

    instrument()
    if _lets_engine_die(config):
        warn_once(NEEDS_STATISTICS)


def _trace_flags(config: Any) -> dict[str, Any]:
    """Return ``actor_rollout_ref.rollout.trace``; empty if verl has no such flags."""
    try:
        trace = config["actor_rollout_ref"]["rollout"]["trace"]
        return {name: trace.get(name) for name in ("backend", "project_name", "experiment_name")}
    except (AttributeError, KeyError, TypeError):
        return {}


def _lets_engine_die(config: Any) -> bool:
    """Return whether verl's configuration lets vLLM trace without log statistics."""
    try:
        rollout = config["actor_rollout_ref"]["rollout"]
        engine = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
        disabled = engine.get("disable_log_stats", rollout.get("disable_log_stats"))
        return bool(engine.get("otlp_traces_endpoint") and disabled)
    except (AttributeError, KeyError, TypeError):
        return False


# --- the tracker's run, which verl starts after its workers -------------------------------------------------


@seams.after("verl.utils.tracking", "Tracking.__init__", "traces are not linked to the MLflow or W&B run")
def _publish_runs(_: None, tracking: Any, *__: Any, **___: Any) -> None:
    loggers = getattr(tracking, "logger", {})
    publish_active_runs("mlflow" in loggers, getattr(loggers.get("wandb"), "run", None))
