"""Public functions that continue trajectories in Ray's tasks and actors.

- :func:`otel_rollout.instrument`, called before ``ray.init``, is all that most programs need.
- ``RAY_RUNTIME_ENV_HOOK=otel_rollout.ray.runtime_env_hook`` in the driver's environment instruments a program
  without a change to its code.
- :func:`ray_runtime_env` is for programs that compose their ``runtime_env`` themselves.
- :func:`carry_context` decorates classes and functions in programs where Ray must not be patched.
"""

from __future__ import annotations

from typing import Any

from otel_rollout.base.errors import internal_errors
from otel_rollout.propagation.instrument import instrument
from otel_rollout.propagation.ray_decorator import carry_context
from otel_rollout.propagation.ray_worker_setup import ray_runtime_env

__all__ = ["carry_context", "ray_runtime_env", "runtime_env_hook"]


def runtime_env_hook(runtime_env: Any) -> Any:
    """Add tracing to a job's ``runtime_env``. Never raises.

    Ray calls this function inside ``ray.init`` if the variable ``RAY_RUNTIME_ENV_HOOK`` names the function.

    Args:
        runtime_env: of the job, merged with the one given to ``ray job submit``; None if the job has none.

    Returns:
        A runtime_env that prepares the job's workers.
    """
    with internal_errors("preparing Ray's workers"):
        instrument()
        return ray_runtime_env(runtime_env)
    return runtime_env
