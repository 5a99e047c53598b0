"""Record a span of another library, which its instrumentor may also read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from time import time_ns
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span, SpanContext, Status, StatusCode

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors, pass_on, warn_once
from otel_rollout.base.given import items, listed
from otel_rollout.otlp import writer
from otel_rollout.record.recording import content, previews
from otel_rollout.record.recording.exception_text import qualified_name
from otel_rollout.record.recording.identity import Identity
from otel_rollout.record.recording.provider import RecordingTracer
from otel_rollout.record.recording.span import ATTRIBUTE, EVENT, Encoded, RecordingSpan, harmless
from otel_rollout.record.recording.state import Recorder, state

MAX_ATTRIBUTES: Final = 1 << 14
"""Maximum attributes of one span. OpenInference spends two or more on each message of a conversation."""
_NEVER_ENDED: Final = "never ended"
"""Event of a span whose instrumentor did not end it."""
_MAX_NEVER_ENDED: Final = 4096
"""Maximum spans that wait for :func:`end_never_ended`; further ones are lost, and counted as open."""
_PLAIN: Final = frozenset({str, int, float, bool, bytes})
TOKEN_COUNTS: Final = ("gen_ai.usage.", "llm.token_count.", "llm.usage.")
"""Beginnings of attribute names that tell how many tokens a model call took."""
_MODEL_OPERATIONS: Final = frozenset({"chat", "completion", "text_completion", "generate_content"})
"""Values of ``gen_ai.operation.name`` and of OpenLLMetry's ``llm.request.type`` of model calls."""
_MODEL_NAME: Final = "llm.model_name"
"""OpenInference's attribute of model calls."""
_OPERATION_NAMES: Final = (semconv.GEN_AI_OPERATION_NAME, "llm.request.type")


class JoinedSpan(RecordingSpan):
    """A span of another library inside a trajectory.

    The attributes are encoded when the span ends, because instrumentors read them (``span.attributes``), as
    with spans of OpenTelemetry's SDK, and replace some. One call of orjson for all attributes takes half the
    time of one call per attribute.

    Args:
        parent: the span of ours above, if it is in this process.
        scope_name: name of the instrumentation scope.
        content_limits: what may be recorded of messages, inputs and outputs.
        exceptions: whether an exception that leaves ``with span:`` is recorded, and sets the status.
    """

    tracer: RecordingTracer

    def __init__(
        self,
        tracer: RecordingTracer,
        name: str,
        trace_id: bytes,
        head: bytes,
        identity: Identity,
        *,
        parent: RecordingSpan | None,
        scope_name: str,
        content_limits: content.ContentLimits,
        exceptions: tuple[bool, bool] = (True, True),
    ) -> None:
        super().__init__(tracer, writer.json_string(name), trace_id, head, identity, {})
        self.name = name
        self.scope_name = scope_name
        self.attributes: dict[str, Any] = {}
        self.end_time: int | None = None
        self._parent_span = parent
        self._content_limits = content_limits
        self._exceptions = exceptions

    # --- What an instrumentor may read, as from a span of the SDK -------------------------------------------

    @property
    def _attributes(self) -> dict[str, Any]:
        """The attributes, by the SDK's private name, which OpenInference uses."""
        return self.attributes

    @property
    def context(self) -> SpanContext:
        """The span's ids."""
        return self.get_span_context()

    @property
    def parent(self) -> SpanContext | None:
        """The ids of the span above, if it is in this process."""
        above = self._parent_span
        return above.get_span_context() if above is not None else None

    @property
    def status(self) -> Status:
        """The status that was set last."""
        details = self._details
        if details is None:
            return Status()
        return Status(StatusCode(details.status), details.status_message)

    @property
    def is_model_call(self) -> bool:
        """Whether the attributes set so far say that this is a call of a language model.

        OpenInference's wrapper of a span keeps the span's kind back until the end, but not the model's name.
        """
        attributes = self.attributes
        return is_model_call(attributes) or (
            semconv.SPAN_KIND not in attributes and _MODEL_NAME in attributes
        )

    # --- What an instrumentor records -----------------------------------------------------------------------

    def set_attribute(self, key: str, value: writer.AttributeInput) -> None:
        """Set an attribute; ignore None.

        OpenInference sets dozens of attributes, nearly all of them texts. So a text is stored without a
        check, and :meth:`end` removes the attributes of the trajectory's identity.
        """
        try:
            if type(value) is not str:
                value = self._recorded_value(key, value)
                if value is None:
                    return
            attributes = self.attributes
            if self.ended:
                return
            if len(attributes) < MAX_ATTRIBUTES or key in attributes:
                attributes[str(key)] = value
            else:
                self._count_dropped(ATTRIBUTE, MAX_ATTRIBUTES)
        except Exception as error:  # noqa: BLE001 - the instrumentor's mistake is no internal error
            pass_on(error)
            self._count_failed(ATTRIBUTE, key, error)

    def _recorded_value(self, key: str, value: Any) -> Any:
        """Return a value as it is kept: a copy of a list or mapping, which may change later."""
        type_ = type(value)
        if type_ is int and key.startswith(TOKEN_COUNTS):
            self.replies_below = True
        if type_ in _PLAIN or value is None:
            return value
        return dict(items(value)) if isinstance(value, Mapping) else _as_tuple(value)

    def set_attributes(self, attributes: Mapping[str, writer.AttributeInput]) -> None:
        """Set several attributes."""
        try:
            for key, value in items(attributes):
                self.set_attribute(key, value)
        except Exception as error:  # noqa: BLE001 - no mapping, or one that raises
            pass_on(error)
            self._count_failed(ATTRIBUTE, None, error)

    def update_name(self, name: str) -> None:
        """Rename the span."""
        if not self.ended:
            self.name = writer.text_of(name)
        super().update_name(name)

    @harmless(EVENT)
    def add_event(
        self,
        name: str,
        attributes: Mapping[str, writer.AttributeInput] | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Add an event, now or at ``timestamp`` (ns since the epoch)."""
        if not self.ended:
            super().add_event(name, self._content_limits.applied(attributes or {}), timestamp)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, writer.AttributeInput] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add an ``exception`` event; if content is not recorded, the event has only the exception's type."""
        if self._content_limits.mode == "full":
            super().record_exception(exception, attributes, timestamp, escaped)
        else:
            self.add_event("exception", {semconv.EXCEPTION_TYPE: qualified_name(type(exception))}, timestamp)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status, without a description if content is not recorded."""
        if self._content_limits.mode != "full":
            status = status.status_code if isinstance(status, Status) else status
            description = None
        super().set_status(status, description)

    def end(self, end_time: int | None = None) -> None:
        """Record the span, or count it as dropped if it cannot be encoded."""
        if self.ended:
            return
        given = writer.valid_time(end_time, 0)
        self.end_time = given or time_ns()
        try:
            limits, identity = self._content_limits, self.identity.attributes
            attributes: Mapping[str, Any] = self.attributes
            if not identity.keys().isdisjoint(attributes.keys()):
                attributes = {key: value for key, value in attributes.items() if key not in identity}
            if limits.mode != "full":
                attributes = limits.applied(attributes)
            try:
                self.encoded = _encoded_at_once(attributes, limits)
            except Exception as error:  # noqa: BLE001 - a lone surrogate, an object's own `__str__`
                pass_on(error)
                self.encoded = self._encoded_one_by_one(limits.applied(attributes))
            if self._parent_span is not None:
                self._tell_parent(self._parent_span, attributes)
        except Exception as error:  # noqa: BLE001 - we are inside user code
            pass_on(error)
        super().end(given or None)
        self.attributes = {}
        self._parent_span = None

    def __del__(self) -> None:
        """Keep a span that was not ended, for example of an abandoned stream, for :func:`end_never_ended`.

        The garbage collector interrupts any code, which may hold locks. So nothing is encoded or logged here.
        """
        active: Recorder | None = state.runtime
        if active is None or getattr(self, "ended", True) or len(state.never_ended) >= _MAX_NEVER_ENDED:
            return
        if self.tracer.provider is active.provider:  # not after a fork: the parent ends it
            state.never_ended.append((self, time_ns()))

    def _encoded_one_by_one(self, attributes: Mapping[str, Any]) -> Encoded:
        encoded: Encoded = {}
        for key, value in attributes.items():
            try:
                encoded[key] = (b",", writer.attribute(key, value))
            except Exception as error:  # noqa: BLE001 - one value that cannot be encoded
                pass_on(error)
                self._count_failed(ATTRIBUTE, key, error)
        return encoded

    def _tell_parent(self, parent: RecordingSpan, attributes: Mapping[str, Any]) -> None:
        """Tell the span above that tokens are counted in this span; offer a root its input and output."""
        if self.replies_below:
            parent.replies_below = True
        trajectory = parent.trajectory
        if trajectory is not None:
            longest = self._content_limits.longest
            previews.offer(trajectory, attributes, previews.events_of(self.events), longest)


def is_model_call(attributes: Mapping[str, Any]) -> bool:
    """Return whether a span's attributes say that it is a call of a language model."""
    kind = attributes.get(semconv.SPAN_KIND)
    if kind is not None:
        return isinstance(kind, str) and kind == semconv.KIND_LLM
    operations = [attributes.get(name) for name in _OPERATION_NAMES]
    return any(isinstance(operation, str) and operation in _MODEL_OPERATIONS for operation in operations)


def _as_tuple(value: Any) -> Any:
    if type(value) is list or type(value) is tuple:
        return tuple(value)
    return tuple(listed(value, writer.MAX_ENTRIES)) if isinstance(value, (list, tuple)) else value


def _encoded_at_once(attributes: Mapping[str, Any], limits: content.ContentLimits) -> Encoded:
    """Encode all attributes by one call.

    Raises:
        TypeError: a value cannot be encoded, or a text is too long.
    """
    if not attributes:
        return {}
    encoded = writer.attribute_list_at_once(attributes)
    if len(encoded) > limits.longest and limits.has_longer(attributes):
        raise TypeError("a text is too long")
    return {"": (b",", encoded[1:-1])}


def end_never_ended() -> None:
    """Record the spans that were never ended; their end is the time when the last reference was gone."""
    waiting = state.never_ended
    while waiting:
        with internal_errors("recording a span that was never ended"), suppress(IndexError):  # another thread
            span, end = waiting.popleft()
            span.add_event(_NEVER_ENDED, timestamp=end)
            span.end(end)
            warn_once(
                f"a span of {span.scope_name} was never ended (an abandoned stream, for example); it is "
                "recorded up to the moment in which nothing referred to it any more",
                f"never ended: {span.scope_name}",
            )


# --- log events of GenAI instrumentors ---------------------------------------------------------------------


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

    A span of the application's own provider does not get the event itself: the application's backend would
    show the event.
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
