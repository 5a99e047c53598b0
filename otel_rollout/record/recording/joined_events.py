"""Record the log events of GenAI instrumentors as events of their spans.

Some instrumentors put messages into log records instead of span attributes. Without a logger provider these
records are lost. Inside a trajectory they become events of the span to which they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors
from otel_rollout.record.recording.joined_span import JoinedSpan
from otel_rollout.record.recording.span import RecordingSpan
from otel_rollout.record.recording.state import state

SEAMS: Final = (
    ("opentelemetry._logs._internal", "ProxyLogger", "_logger"),
    ("opentelemetry._events", "ProxyEventLogger", "_event_logger"),
)
"""Module, class and property by which a proxy looks for its real logger. The second exists up to
opentelemetry-api 1.38."""
_PREFIX: Final = "gen_ai."


class JoinedLogger:
    """Records GenAI events with the current span of another library; drops other records.

    Args:
        proxy: the logger of OpenTelemetry's API that has no real logger.
    """

    def __init__(self, proxy: Any) -> None:
        self.name = getattr(proxy, "_name", "")

    def enabled(self, **_: Any) -> bool:
        """Return whether a record would be used."""
        return _recorder_of(trace.get_current_span()) is not None

    @internal_errors("recording a log event of another library")
    def emit(self, record: Any = None, **fields: Any) -> None:
        """Add a log record to the span in its context, if it is a GenAI event."""

        def field(name: str) -> Any:
            return getattr(record, name, None) if record is not None else fields.get(name)

        add_event = _recorder_of(trace.get_current_span(field("context")))
        if add_event is None:
            return
        attributes = dict(field("attributes") or {})
        name = field("event_name") or attributes.pop("event.name", None)
        if not isinstance(name, str) or not name.startswith(_PREFIX):
            return
        body = field("body")
        if body is not None:
            attributes[semconv.GEN_AI_EVENT_CONTENT] = _as_text(body)
        add_event(name, attributes, field("timestamp"))


def _recorder_of(span: Span) -> Callable[..., None] | None:
    """Return the function that records an event of a span; None for a span of ours, and for one not recorded.

    A span of the application's own provider does not get the event itself: its backend would show it.
    """
    if isinstance(span, RecordingSpan):
        return span.add_event if isinstance(span, JoinedSpan) else None
    open_span = state.sdk_spans.get(span.get_span_context().span_id) if state.sdk_spans else None
    return open_span.add_log_event if open_span is not None and not open_span.is_ours else None


def _as_text(body: Any) -> str:
    """Return a record's body as JSON; text stays as it is."""
    if isinstance(body, str):
        return body
    import orjson

    plain = dict(body) if isinstance(body, Mapping) else body
    return orjson.dumps(plain, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
