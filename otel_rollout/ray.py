"""Continue trajectories in Ray's tasks and actors, by public functions.

Most programs need none of them: ``OTEL_TRACES_EXPORTER`` in the driver's environment is enough, and so is
:func:`otel_rollout.instrument` before ``ray.init``.

- :func:`ray_runtime_env` is for programs that compose their ``runtime_env`` themselves.
- :func:`carry_context` decorates classes and functions in programs where Ray must not be patched.
"""

from __future__ import annotations

from typing import Any

from otel_rollout.record.propagation.ray_decorator import carry_context
from otel_rollout.record.propagation.ray_worker_setup import ray_runtime_env

__all__ = ["carry_context", "ray_runtime_env", "runtime_env_hook"]


def runtime_env_hook(runtime_env: Any) -> Any:
    """Return a job's ``runtime_env`` as it is.

    Environments may still name this function in ``RAY_RUNTIME_ENV_HOOK``, which earlier versions needed.
    """
    return runtime_env
