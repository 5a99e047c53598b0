"""verl's driver, before Ray is started: what its flags ask for becomes the job's set-up."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from otel_rollout import configuration
from otel_rollout.base.errors import fault, warn_once
from otel_rollout.integrations.verl import seams, vllm
from otel_rollout.runs import membership
from otel_rollout.settings import SettingsError

_logger = logging.getLogger("otel_rollout")

DEFAULT_MLFLOW_URI: Final = "sqlite:////tmp/mlruns.db"
"""verl's own default, where its ``trainer.logger=mlflow`` puts the run as well."""
ENVIRONMENT: Final = "otel"
"""The backend that means: what the environment says."""
VERLS_OWN: Final = "trackio"
"""The backend that is left to verl's own code."""
_FORWARDED: Final = ("VERL_USE_EXTERNAL_MODULES", "VERL_USE_EXTERNAL_PLUGINS")


def install(module: ModuleType) -> None:
    """Wrap the function in which verl prepares Ray's workers; it is called right before ``ray.init``."""
    seams.wrap(
        module,
        "get_ppo_ray_runtime_env",
        _preparing,
        "trace.backend has no effect on otel-rollout; set OTEL_TRACES_EXPORTER",
    )


def _preparing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_ppo_ray_runtime_env(*args: Any, **kwargs: Any) -> Any:
        try:
            set_up(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - training starts without tracing
            fault("setting tracing up from verl's configuration", error)
        runtime_env = original(*args, **kwargs)
        try:
            for name in _FORWARDED:  # or the workers of other nodes would lack the plugin
                if name in os.environ:
                    runtime_env["env_vars"].setdefault(name, os.environ[name])
        except Exception as error:  # noqa: BLE001
            fault("forwarding variables to verl's workers", error)
        return runtime_env

    return get_ppo_ray_runtime_env


def set_up(config: Any = None) -> None:
    """Configure tracing in the driver as ``config``, verl's, and the environment say. Workers inherit it."""
    trace = _flags(config)
    exporters = asked_for(trace.get("backend"))
    if not exporters:
        return
    try:
        membership.configure(
            {
                "exporters": with_default_target(exporters),
                "project_name": unless_set("OTEL_ROLLOUT_PROJECT", trace.get("project_name")),
                "experiment_name": unless_set("OTEL_ROLLOUT_EXPERIMENT", trace.get("experiment_name")),
            }
        )
    except SettingsError as error:
        _logger.error("otel-rollout: verl's trace configuration cannot be used: %s", error)
        return
    from otel_rollout.propagation.instrument import instrument

    instrument()
    if _engine_lacks_statistics(config):
        warn_once(vllm.NEEDS_STATISTICS)


def asked_for(backend: str | None) -> dict[str, dict[str, Any]]:
    """The exporters that ``trace.backend`` and the environment ask for, with their options; none: no tracing.

    Says what cannot be had, and which of the two wins where they disagree: the flag.
    """
    configured, _ = configuration.from_environment(os.environ)
    environment = {name: dict(options) for name, options in configured.exporters.items()}
    if configured.sdk_disabled:
        return {}
    flag = (backend or "").strip()
    if not flag:
        return environment
    if flag == ENVIRONMENT:
        if not environment:
            _logger.error(
                "otel-rollout: trace.backend=otel means what OTEL_TRACES_EXPORTER says, which is not set: "
                "nothing is traced. Set it, to mlflow for example."
            )
        return environment
    if flag == VERLS_OWN:
        over = f", over OTEL_TRACES_EXPORTER={','.join(environment)}" if environment else ""
        _logger.warning("otel-rollout: trace.backend=trackio is left to verl's own code%s.", over)
        return {}
    chosen = {name.strip(): environment.get(name.strip(), {}) for name in flag.split(",") if name.strip()}
    try:
        membership.check_exporters(chosen)
    except SettingsError as error:
        _logger.error("otel-rollout: nothing is traced by trace.backend=%s: %s", flag, error)
        return {}
    if environment and environment.keys() != chosen.keys():
        _logger.warning(
            "otel-rollout: the flag wins: traces go to trace.backend=%s, not to OTEL_TRACES_EXPORTER=%s.",
            flag,
            ",".join(environment),
        )
    return chosen


def with_default_target(exporters: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The exporters, with a place for MLflow's traces where nothing names one."""
    targeted = {name: dict(options) for name, options in exporters.items()}
    mlflow = targeted.get("mlflow")
    if mlflow is not None and "tracking_uri" not in mlflow and not os.environ.get("MLFLOW_TRACKING_URI"):
        mlflow["tracking_uri"] = DEFAULT_MLFLOW_URI
        _logger.warning(
            "otel-rollout: MLFLOW_TRACKING_URI is not set, so traces go where verl puts its runs, to %s on "
            "this machine, those of the cluster's other nodes included.",
            DEFAULT_MLFLOW_URI,
        )
    return targeted


def _flags(config: Any) -> dict[str, Any]:
    """``actor_rollout_ref.rollout.trace`` of verl's configuration; empty for a version that has none."""
    try:
        trace = config["actor_rollout_ref"]["rollout"]["trace"]
        return {name: trace.get(name) for name in ("backend", "project_name", "experiment_name")}
    except (AttributeError, KeyError, TypeError):
        return {}


def _engine_lacks_statistics(config: Any) -> bool:
    """Tell whether vLLM is told to trace without the statistics that its spans are made of."""
    try:
        rollout = config["actor_rollout_ref"]["rollout"]
        engine = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
        disabled = engine.get("disable_log_stats", rollout.get("disable_log_stats"))
        return bool(engine.get("otlp_traces_endpoint") and disabled)
    except (AttributeError, KeyError, TypeError):
        return False


def unless_set(variable: str, value: Any) -> str | None:
    """verl's name of a project or experiment; None where a variable of ours names it."""
    return None if os.environ.get(variable) or not value else str(value)
