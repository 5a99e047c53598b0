"""Switch on the spans that PydanticAI makes itself.

PydanticAI uses OpenTelemetry, but only for agents that are told to. ``Agent.instrument_all()`` tells all
agents that have no setting of their own.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar, Final

from opentelemetry.trace import TracerProvider

from otel_rollout.integrations.state import state

NAME: Final = "pydantic_ai"


class PydanticAIInstrumentor:
    """Sets PydanticAI's default, with the interface of OpenTelemetry's ``BaseInstrumentor``."""

    _instance: ClassVar[PydanticAIInstrumentor]

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Return whether agents without a setting of their own make spans."""
        return bool(_default())

    def instrument(self, *, tracer_provider: TracerProvider | None = None, **_: Any) -> None:
        """Have all agents make spans, unless the application has set their default."""
        from pydantic_ai import Agent
        from pydantic_ai.models.instrumented import InstrumentationSettings

        if not _default():
            state.adapters[NAME] = InstrumentationSettings(tracer_provider=tracer_provider)
            Agent.instrument_all(state.adapters[NAME])

    def uninstrument(self) -> None:
        """Restore PydanticAI's default, unless the application has set another."""
        added = state.adapters.pop(NAME, None)
        if added is not None and _default() is added:
            from pydantic_ai import Agent

            Agent.instrument_all(False)


PydanticAIInstrumentor._instance = PydanticAIInstrumentor()


def _default() -> Any:
    """Return the default of agents that have no setting of their own; imports nothing."""
    agent = getattr(sys.modules.get("pydantic_ai"), "Agent", None)
    return getattr(agent, "_instrument_default", None)
