"""Record what the OpenAI Agents SDK traces: agents, model calls, tools, handoffs and guardrails.

The SDK does not use OpenTelemetry. It reports its spans to trace processors, and one of them is ours. The
SDK's own processor, which sends spans to OpenAI, stays as the application has set it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.trace import TracerProvider

from otel_rollout.base.errors import internal_errors
from otel_rollout.base.patching import Patches
from otel_rollout.base.version import VERSION
from otel_rollout.integrations.openai_agents.processor import TrajectoryProcessor
from otel_rollout.integrations.state import state

NAME: Final = "openai_agents"


class _Added(NamedTuple):
    """What this adapter has added to the SDK."""

    processor: TrajectoryProcessor
    patches: Patches


class OpenAIAgentsInstrumentor:
    """Add a trace processor to the SDK; it has the interface of OpenTelemetry's ``BaseInstrumentor``."""

    _instance: ClassVar[OpenAIAgentsInstrumentor]

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Return whether the processor receives the SDK's spans."""
        return NAME in state.adapters

    def instrument(self, *, tracer_provider: TracerProvider | None = None, **_: Any) -> None:
        """Add the processor, also to lists of processors that the application sets later."""
        if self.is_instrumented_by_opentelemetry:
            return
        from agents.tracing import get_trace_provider

        tracer = trace.get_tracer(__name__, VERSION, tracer_provider)
        added = _Added(TrajectoryProcessor(tracer), Patches())
        provider = get_trace_provider()
        provider.register_processor(added.processor)
        added.patches.replace(type(provider), "set_processors", functools.partial(_keeping, added))
        state.adapters[NAME] = added

    def uninstrument(self) -> None:
        """Stop recording; the processor stays in the SDK's list, and does nothing."""
        added: _Added | None = state.adapters.pop(NAME, None)
        if added is not None:
            added.processor.is_active = False
            added.patches.undo()


OpenAIAgentsInstrumentor._instance = OpenAIAgentsInstrumentor()


def _keeping(added: _Added, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that sets a provider's processors, and adds ours to them."""

    @functools.wraps(original)
    def set_processors(provider: Any, processors: list[Any]) -> Any:
        result = original(provider, processors)
        with internal_errors("keeping a processor of the OpenAI Agents SDK"):
            if added.patches.active and added.processor not in processors:
                provider.register_processor(added.processor)
        return result

    return set_processors
