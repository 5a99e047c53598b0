"""Set the attributes, the output and the error of an operation's span."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span, StatusCode

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.base.given import items, reading
from otel_rollout.otlp.writer import text_of
from otel_rollout.record import runtime

_TOOL_NAME: Final = re.compile(r"[\w.:/@-]{1,64}")
"""Pattern of a tool's name: OpenAI's rule, and the separators of namespaces."""


def set_attributes(span: Span, attributes: Mapping[str, Any]) -> None:
    """Set the attributes whose value is not None."""
    with reading("attributes=", "an operation is recorded without some of its attributes"):
        for name, value in items(attributes):
            if value is not None:
                span.set_attribute(name, value)


def put_value(span: Span, key: str, value: Any) -> None:
    """Set ``input.value`` or ``output.value`` to a value, unless the user has set it.

    Nothing is set for None, or if the settings exclude content.
    """
    from otel_rollout.record.capture import encoding, span_io

    active = runtime.current()
    if active is None or value is None:
        return
    encode = encoding.ENCODERS[active.settings.capture_content]
    if encode is not None:
        span_io.put_json(span, key, encode(value, active.settings.value_limit))


@internal_errors("showing an operation's output")
def set_output(value: Any) -> None:
    """Show ``value`` as the current span's output, if content is recorded. Never raises."""
    put_value(trace.get_current_span(), semconv.OUTPUT_VALUE, value)


def fail(span: Span, error: BaseException | str) -> None:
    """Mark an operation as failed; record an error's text only if content is recorded."""
    given: Any = error  # `isinstance` asks the object, which may raise
    if issubclass(type(given), BaseException):
        from otel_rollout.record.capture import span_io

        span_io.fail(span, given)
        return
    if records_content():
        span.set_status(StatusCode.ERROR, given)
    else:
        span.set_status(StatusCode.ERROR)


def records_content() -> bool:
    """Return whether texts of prompts, answers and rewards may be recorded."""
    active = runtime.current()
    return active is not None and active.settings.capture_content == "full"


def tool_call(name: Any, id_: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of a tool call's span, and its attributes.

    Names of spans have to be few and short, and they are recorded even if content is not. So a name that a
    model has made up, and that no tool could have, is shown as "invalid".

    Args:
        name: the tool's name.
        id_: id of the call; None if it has none.
    """
    text = text_of(name)
    shown = text if _TOOL_NAME.fullmatch(text) else "invalid"
    attributes = {
        semconv.GEN_AI_OPERATION_NAME: "execute_tool",
        semconv.GEN_AI_TOOL_NAME: shown,
        semconv.GEN_AI_TOOL_CALL_ID: None if id_ is None else text_of(id_),
    }
    return f"execute_tool {shown}", attributes


@internal_errors("describing a tool call")
def describe_tool_call(name: Any, id_: Any) -> None:
    """Give the current span the name and the attributes of a tool call. Never raises."""
    span = trace.get_current_span()
    span_name, attributes = tool_call(name, id_)
    span.update_name(span_name)
    set_attributes(span, attributes)


def number(value: Any) -> float | None:
    """Convert a number in a request to a float; None for any other value."""
    return float(value) if isinstance(value, (int, float)) else None
