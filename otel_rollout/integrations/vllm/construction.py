"""Warn at the construction of an engine of what will go wrong: it would die, or ids repeat."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any, Final

from opentelemetry import trace

from otel_rollout.base.errors import warn_once
from otel_rollout.integrations.kit.seams import after
from otel_rollout.integrations.vllm.patched_modules import seams
from otel_rollout.integrations.vllm.trace_headers import ENGINES, traces
from otel_rollout.record.recording.application import sdk_provider_in

_LOSS: Final = "nothing warns if the engine's settings let it die at its first request"
NEEDS_STATISTICS: Final = (
    "vLLM's engine will die at its first request: otlp_traces_endpoint is set, and disable_log_stats is True "
    "(the default of LLM, and of verl). Set disable_log_stats=False "
    "(verl: actor_rollout_ref.rollout.disable_log_stats=False), or no otlp_traces_endpoint"
)
"""Warning for a configuration with which vLLM's engine would die."""
SEEDED: Final = (
    "vLLM has set the seed {} for Python's random numbers in this process, so OpenTelemetry's SDK makes the "
    "ids of earlier runs again. Ids of otel-rollout's spans are not affected. For the other spans of this "
    "process, set a tracer provider with an id_generator that draws from random.SystemRandom()"
)
"""Warning for a process whose SDK draws ids from a generator that vLLM has seeded."""


def install(module: ModuleType) -> None:
    """Wrap an engine's constructor."""
    examine = after(_examine, "examining an engine of vLLM's")
    seams.wrap(module, f"{ENGINES[module.__name__]}.__init__", examine, _LOSS)


def _examine(_: None, engine: Any, *__: Any, **___: Any) -> None:
    if traces(engine) and getattr(engine, "log_stats", None) is False:
        warn_once(NEEDS_STATISTICS)
    seed = getattr(getattr(engine, "model_config", None), "seed", None)
    if isinstance(seed, int) and has_seeded_ids() and was_seeded(seed):
        warn_once(SEEDED.format(seed))


def has_seeded_ids() -> bool:
    """Return whether spans of this process have ids of OpenTelemetry's default generator."""
    provider = sdk_provider_in(trace.get_tracer_provider())
    if provider is None:
        return False
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    return type(provider.id_generator) is RandomIdGenerator


def was_seeded(seed: int) -> bool:
    """Return whether Python's global generator was seeded so, and few numbers were drawn since.

    Only the state is compared, so no number is drawn. The generator's words change all at once, at the first
    draw and then after 624.
    """
    of_seed = random.Random(seed)  # noqa: S311 - compared, not used
    words = random.getstate()[1][:-1]
    if words == of_seed.getstate()[1][:-1]:
        return True
    of_seed.random()
    return bool(words == of_seed.getstate()[1][:-1])
