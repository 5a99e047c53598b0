"""Follow rollouts through verifiers' environment server, which prime-rl's orchestrator uses.

The server runs rollouts in processes of its own. A request names neither step nor group nor sibling; the
orchestrator stamps them on the episode that it gets back. So the reply carries the ids of the trajectories,
beside the fields that verifiers reads, and the orchestrator's process can score them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.verifiers import episodes, rollouts
from otel_rollout.integrations.verifiers.patched_modules import seams

_KEY: Final = "otel_rollout_trajectories"
"""Key of an episode's record on the wire; verifiers ignores keys that it does not know."""


def install(module: ModuleType) -> None:
    """Wrap the server's method that runs a request, or the client's that reads the reply."""
    loss = "the trainer's step, policy versions and late rewards are not recorded"
    if hasattr(module, "EnvServer"):
        seams.wrap(module, "EnvServer._run", _sending, loss)
    else:
        seams.wrap(module, "EnvClient._validate_episode", _receiving, loss)


def _sending(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with episodes.served():
            response = await original(self, *args, **kwargs)
        with internal_errors("sending the ids of trajectories"):
            ended = rollouts.here().ended
            served = [trace.id for trace in response.traces if trace.id in ended]
            response.head[_KEY] = {trace_id: ended[trace_id] for trace_id in served}
        return response

    return _run


def _receiving(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def _validate_episode(self: Any, record: Any, *args: Any, **kwargs: Any) -> Any:
        with internal_errors("receiving the ids of trajectories"):
            rollouts.here().ended.update(record.pop(_KEY, {}))
        return await original(self, record, *args, **kwargs)

    return _validate_episode
