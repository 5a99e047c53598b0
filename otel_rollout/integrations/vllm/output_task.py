"""Start the task that serves all requests of an ``AsyncLLM`` outside any trajectory.

vLLM may start it with the first request. A task keeps the context in which it is started, and vLLM makes the
span of a request without trace headers below the current span: that would be the trajectory of the first
request.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from opentelemetry.context import attach, get_current

from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.vllm.patched_modules import seams
from otel_rollout.record.capture.context import without_trajectory


def install(module: ModuleType) -> None:
    """Wrap the method that starts the task (``vllm.v1.engine.async_llm``)."""
    loss = "vLLM's own spans of requests outside any trajectory may be below another request's"
    seams.wrap(module, "AsyncLLM._run_output_handler", _starting, loss)


def _starting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _run_output_handler(self: Any) -> Any:
        if getattr(self, "output_handler", None) is not None:
            return original(self)
        outside = contextvars.copy_context()
        with internal_errors("starting a task of vLLM's outside any trajectory"):
            outside.run(_leave)
        return outside.run(original, self)

    return _run_output_handler


def _leave() -> None:
    attach(without_trajectory(get_current()))
