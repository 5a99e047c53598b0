"""Record the requests of an engine in this process whose step fails: the engine answers none of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.vllm import requests
from otel_rollout.integrations.vllm.patched_modules import seams


def install(module: ModuleType) -> None:
    """Wrap the method that advances the engine (``vllm.v1.engine.llm_engine``)."""
    seams.wrap(module, "LLMEngine.step", _stepping, "requests of an engine that dies are not traced")


def _stepping(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            with internal_errors("recording requests of an engine that died"):
                requests.fail_all(self.output_processor, error)
            raise

    return step
