"""Tell content from metadata in the attributes of other libraries' spans, and limit the recorded content.

This package's operations know which of their values are content. A span of another library has attributes in
that library's vocabulary: OpenInference, OpenTelemetry GenAI, OpenLLMetry, PydanticAI or MLflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from otel_rollout.base.given import items
from otel_rollout.otlp.writer import AttributeInput
from otel_rollout.settings import Settings

_OPENINFERENCE: Final = """
    document. embedding.embeddings embedding.invocation_parameters embedding.text input.value llm.choices
    llm.function_call llm.input_messages llm.invocation_parameters llm.output_messages llm.prompt_template
    llm.prompts llm.tools message output.value reranker.input_documents reranker.output_documents
    reranker.query retrieval.documents tool.description tool.parameters tool_call.function
"""
_OPENTELEMETRY: Final = """
    db.query db.statement error.message exception.message exception.stacktrace
    gen_ai.evaluation.explanation gen_ai.event.content gen_ai.input.messages gen_ai.output.messages
    gen_ai.retrieval gen_ai.system_instructions gen_ai.tool.call.arguments gen_ai.tool.call.result
    gen_ai.tool.definitions gen_ai.tool.description
"""
_OPENLLMETRY: Final = """
    gen_ai.completion gen_ai.prompt llm.request.functions traceloop.entity.input traceloop.entity.output
    traceloop.prompt
"""
_PYDANTIC: Final = """
    all_messages_events events final_result logfire.msg model_request_parameters pydantic_ai.all_messages
    request_data response_data tool_arguments tool_response
"""
_MLFLOW: Final = "mlflow.spanInputs mlflow.spanOutputs"
_CONTENT: Final = tuple(" ".join((_OPENINFERENCE, _OPENTELEMETRY, _OPENLLMETRY, _PYDANTIC, _MLFLOW)).split())
"""Beginnings of the names of attributes that hold content, in each vocabulary."""
_CONTENT_NAMES: Final = frozenset({"body", "content"})
"""Whole names of attributes that hold content: of the events of OpenTelemetry's GenAI conventions."""
_EXCEPTION: Final = "exception."
"""Beginning of the names of an exception's message and stack, whose size is not recorded."""
_FACTS: Final = (".role", ".name", ".finish_reason", ".mime_type", ".id", ".type")
"""Ends of names that hold no content, whatever their beginning."""


class ContentLimits(NamedTuple):
    """The limits of recorded content.

    Attributes:
        mode: ``full``; ``metadata``, which keeps the length of texts; or ``none``.
        longest: maximum characters of one text.
    """

    mode: str
    longest: int

    def applied(self, attributes: Mapping[str, Any]) -> Mapping[str, AttributeInput]:
        """Return the attributes with content removed or replaced, and long texts cut."""
        if self.mode != "full":
            return {
                key: self._described(value) if is_content(key) else value
                for key, value in items(attributes)
                if not is_content(key) or (self.mode == "metadata" and not str(key).startswith(_EXCEPTION))
            }
        return {key: _cut(value, self.longest) for key, value in items(attributes)}

    def has_longer(self, attributes: Mapping[str, Any]) -> bool:
        """Return whether a text is longer than ``longest``."""
        return any(_is_longer(value, self.longest) for value in attributes.values())

    def _described(self, value: Any) -> AttributeInput:
        return f"<{len(value)} characters>" if isinstance(value, str) else f"<{type(value).__name__}>"


NOTHING: Final = ContentLimits("none", 0)
"""Limits that let no content through."""


def limits_of(configured: Settings) -> ContentLimits:
    """Return the limits of a run."""
    return ContentLimits(configured.capture_content, configured.value_limit)


def is_content(name: str) -> bool:
    """Return whether an attribute holds messages, inputs, outputs or other content."""
    name = str(name)
    return name in _CONTENT_NAMES or (name.startswith(_CONTENT) and not name.endswith(_FACTS))


def _is_longer(value: Any, longest: int) -> bool:
    if type(value) is str:
        return len(value) > longest
    return type(value) is tuple and any(type(each) is str and len(each) > longest for each in value)


def _cut(value: Any, longest: int) -> Any:
    if not _is_longer(value, longest):
        return value
    if type(value) is tuple:
        return tuple(_cut(each, longest) for each in value)
    return f"{value[:longest]}… ({len(value) - longest} more characters)"
