"""Trajectories across Ray: the names meant for programs.

- :func:`~otel_rollout.propagation.instrument.instrument`, before ``ray.init``, is all that most need.
- ``RAY_RUNTIME_ENV_HOOK=otel_rollout.ray.runtime_env_hook`` in the driver's environment does the
  same without a change to its code.
- :func:`ray_runtime_env` is for programs that compose their ``runtime_env`` themselves.
- :func:`carry_context` decorates classes and functions where nothing of Ray's may be patched.
"""

from __future__ import annotations

from typing import Any

from otel_rollout.base.errors import fault
from otel_rollout.propagation.instrument import instrument
from otel_rollout.propagation.ray_decorator import carry_context
from otel_rollout.propagation.ray_worker_setup import ray_runtime_env

__all__ = ["carry_context", "ray_runtime_env", "runtime_env_hook"]


def runtime_env_hook(runtime_env: Any) -> Any:
    """What Ray calls inside ``ray.init`` when ``RAY_RUNTIME_ENV_HOOK`` names it. Never raises.

    Args:
        runtime_env: the job's, with that of ``ray job submit`` merged into it; None if it has none.

    Returns:
        It with our part added.
    """
    try:
        instrument()
        return ray_runtime_env(runtime_env)
    except Exception as error:  # noqa: BLE001 - Ray starts without us
        fault("preparing Ray's workers", error)
        return runtime_env
