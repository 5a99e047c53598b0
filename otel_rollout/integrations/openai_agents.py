"""Record what the OpenAI Agents SDK traces: agents, model calls, tools, handoffs and guardrails.

The SDK does not use OpenTelemetry. It reports its spans to trace processors, and one of them is ours. The
SDK's own processor, which sends spans to OpenAI, stays as the application has set it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, Tracer, TracerProvider, set_span_in_context

from otel_rollout.base import semconv
from otel_rollout.base.bounded import BoundedDict
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.finalizers import attach
from otel_rollout.base.patching import Function, Patches
from otel_rollout.base.version import VERSION
from otel_rollout.integrations.kit.spans import fail, put_value, set_attributes
from otel_rollout.integrations.state import state
from otel_rollout.record.capture import usage

NAME: Final = "openai_agents"
_KINDS: Final = {
    "agent": semconv.KIND_AGENT,
    "function": semconv.KIND_TOOL,
    "generation": semconv.KIND_LLM,
    "guardrail": "GUARDRAIL",
    "response": semconv.KIND_LLM,
    "speech": semconv.KIND_LLM,
    "transcription": semconv.KIND_LLM,
}
"""Type of the SDK's span → OpenInference span kind; other types are chains."""
_NOT_RECORDED: Final = frozenset({"task", "turn"})
"""Types that only repeat what the spans around and below them tell."""
_MAX_OPEN: Final = 1 << 16
"""Maximum number of open spans. A cancelled run may leave spans that never end."""


class OpenAIAgentsInstrumentor:
    """Adds a trace processor to the SDK, with the interface of OpenTelemetry's ``BaseInstrumentor``."""

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

        processor = TrajectoryProcessor(trace.get_tracer(__name__, VERSION, tracer_provider))
        provider = get_trace_provider()
        provider.register_processor(processor)
        processor.patches.replace(type(provider), "set_processors", functools.partial(_keeping, processor))
        state.adapters[NAME] = processor

    def uninstrument(self) -> None:
        """Stop recording; the processor stays in the SDK's list, and does nothing."""
        processor: TrajectoryProcessor | None = state.adapters.pop(NAME, None)
        if processor is not None:
            processor.patches.undo()


OpenAIAgentsInstrumentor._instance = OpenAIAgentsInstrumentor()


def _keeping(processor: TrajectoryProcessor, original: Function) -> Function:
    """Return a function that sets a provider's processors, and adds ours to them."""

    @functools.wraps(original)
    def set_processors(provider: Any, processors: list[Any]) -> Any:
        result = original(provider, processors)
        with internal_errors("keeping a processor of the OpenAI Agents SDK"):
            if processor.patches.active and processor not in processors:
                provider.register_processor(processor)
        return result

    return set_processors


# --- the SDK's spans as spans of the trajectory -------------------------------------------------------------


class _Open(NamedTuple):
    """An open span, with the contexts around and inside it."""

    span: Span
    outside: otel_context.Context
    inside: otel_context.Context


class TrajectoryProcessor:
    """Records the SDK's spans inside trajectories; it has the interface of the SDK's ``TracingProcessor``.

    It records as long as ``patches``, which keep it in the SDK's list, are active.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.patches = Patches()
        self._tracer = tracer
        self._open: BoundedDict[str, _Open] = BoundedDict(_MAX_OPEN)

    def on_trace_start(self, trace: Any) -> None:
        """Do nothing: the trajectory is the trace."""

    def on_trace_end(self, trace: Any) -> None:
        """Do nothing."""

    @internal_errors("starting a span of the OpenAI Agents SDK")
    def on_span_start(self, span: Any) -> None:
        """Start a span below the current one, and make it current."""
        data = span.span_data
        if not self.patches.active or data.type in _NOT_RECORDED:
            return
        outside = otel_context.get_current()
        name = str(getattr(data, "name", None) or data.type)
        kind = _KINDS.get(data.type, semconv.KIND_CHAIN)
        started = self._tracer.start_span(name, outside, attributes={semconv.SPAN_KIND: kind})
        if not started.is_recording():
            return
        inside = set_span_in_context(started, outside)
        self._open[span.span_id] = _Open(started, outside, inside)
        attach(inside)

    @internal_errors("ending a span of the OpenAI Agents SDK")
    def on_span_end(self, span: Any) -> None:
        """Describe the span and end it; restore the context around it, if it is still current."""
        open_ = self._open.pop(span.span_id, None)
        if open_ is None:
            return
        try:
            describe = _DESCRIBE.get(span.span_data.type)
            if describe is not None:
                describe(open_.span, span.span_data)
            if span.error is not None:
                _fail(open_.span, span.error)
        finally:
            open_.span.end()
            if otel_context.get_current() is open_.inside:
                attach(open_.outside)

    def shutdown(self) -> None:
        """Do nothing: spans are delivered when the program ends."""

    def force_flush(self) -> None:
        """Do nothing: a span is recorded when it ends."""


def _function(span: Span, data: Any) -> None:
    set_attributes(span, {semconv.GEN_AI_TOOL_NAME: data.name})
    put_value(span, semconv.INPUT_VALUE, _arguments(data.input))
    put_value(span, semconv.OUTPUT_VALUE, data.output)


def _arguments(given: Any) -> Any:
    """Return a tool's arguments, which the SDK has as JSON text."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return given
    return found if isinstance(found, dict) else given


def _generation(span: Span, data: Any) -> None:
    """Describe a call of the Chat Completions API."""
    _model_call(span, data.model)
    settings = data.model_config or {}
    attributes = {
        semconv.GEN_AI_REQUEST_TEMPERATURE: settings.get("temperature"),
        semconv.GEN_AI_REQUEST_TOP_P: settings.get("top_p"),
        semconv.GEN_AI_REQUEST_MAX_TOKENS: settings.get("max_tokens"),
    }
    set_attributes(span, attributes)
    usage.record_once(span, None, usage.read({"usage": data.usage}))
    if data.input is not None:
        put_value(span, semconv.INPUT_VALUE, {"messages": list(data.input)})
    if data.output is not None:
        choices = [{"message": _without_nones(message)} for message in data.output]
        put_value(span, semconv.OUTPUT_VALUE, {"choices": choices})


def _response(span: Span, data: Any) -> None:
    """Describe a call of the Responses API."""
    response = data.response
    _model_call(span, getattr(response, "model", None))
    usage.record_once(span, None, usage.read({"usage": data.usage or getattr(response, "usage", None)}))
    if data.input is not None:
        put_value(span, semconv.INPUT_VALUE, {"input": data.input})
    if response is not None:
        put_value(span, semconv.OUTPUT_VALUE, {"output": response.output})


def _handoff(span: Span, data: Any) -> None:
    put_value(span, semconv.INPUT_VALUE, data.from_agent)
    put_value(span, semconv.OUTPUT_VALUE, data.to_agent)


_DESCRIBE: Final[Mapping[str, Callable[[Span, Any], None]]] = {
    "agent": lambda span, data: set_attributes(span, {"gen_ai.agent.name": data.name}),
    "custom": lambda span, data: put_value(span, semconv.INPUT_VALUE, data.data),
    "function": _function,
    "generation": _generation,
    "guardrail": lambda span, data: put_value(span, semconv.OUTPUT_VALUE, {"triggered": data.triggered}),
    "handoff": _handoff,
    "response": _response,
}


def _model_call(span: Span, model: str | None) -> None:
    set_attributes(span, {semconv.GEN_AI_OPERATION_NAME: "chat", semconv.GEN_AI_REQUEST_MODEL: model})


def _without_nones(message: Any) -> Any:
    """Return a message without the fields that the reply did not set."""
    if not isinstance(message, Mapping):
        return message
    return {name: value for name, value in message.items() if value is not None or name == "content"}


def _fail(span: Span, error: Any) -> None:
    """Mark a span as failed; record the message only if content is recorded."""
    message, reason = error.get("message"), (error.get("data") or {}).get("error")
    fail(span, f"{message}: {reason}" if reason else str(message))
