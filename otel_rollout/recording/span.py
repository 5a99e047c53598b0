"""The recording span: the OTel ``Span`` API in full; ending it writes one line."""

from __future__ import annotations

import functools
import traceback
from binascii import hexlify
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from otel_rollout.base import semconv
from otel_rollout.base.interrupts import pass_on
from otel_rollout.otlp import writer
from otel_rollout.otlp.writer import Details

if TYPE_CHECKING:
    from types import TracebackType

    from otel_rollout.recording.identity import Identity
    from otel_rollout.recording.provider import RecordingTracer

MAX_ATTRIBUTES = 1024
MAX_EVENTS = 1024
MAX_LINKS = 128
"""What one span may hold; beyond, the newest are counted as dropped (the identity comes first and stays)."""

UNFINISHED = "process ended before the trajectory did"
"""Status of a trajectory whose process died."""
_UNFINISHED = Details(status=StatusCode.ERROR.value, status_message=UNFINISHED).encoded()

MAX_EXCEPTION_TEXT = 64 << 10
"""Characters kept of an exception's message, and of its stack; the middle is left out."""

FLAGS = TraceFlags(TraceFlags.SAMPLED | 0x02)
"""Sampled, and with a random trace id (W3C Trace Context level 2)."""
_INTERNAL = SpanKind.INTERNAL.value + 1
LOCAL_PARENT = int(FLAGS) | writer.HAS_IS_REMOTE
REMOTE_PARENT = LOCAL_PARENT | writer.IS_REMOTE
"""Flags of a span, by where its parent is."""

_MADE = "_made"
"""Under what a span keeps its details from the moment that they are made."""

Encoded = dict[str, tuple[bytes, ...]]
"""Attributes by their names, encoded: each in pieces that are joined in the end, with a comma before it."""

Method = TypeVar("Method", bound=Callable[..., None])


def _harmless(method: Method) -> Method:
    """What a user's value does when it is encoded (its ``__str__``, say) must not reach the user's code."""

    @functools.wraps(method)
    def guarded(self: RecordingSpan, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001
            pass_on(error)
            self._count_dropped(0 if method.__name__.startswith("set_attribute") else 1)

    return cast("Method", guarded)


class RecordingSpan(Span):
    """A span that is recorded when it ends.

    Ids are hex digits as bytes, and the name is JSON, as the line wants them; the ``SpanContext`` is made
    when asked for.

    Attributes:
        head_below: how the lines of spans below this one begin, once there is one.
        trajectory: that of which this is the root span, if it is one. Known to ``capture``.
        has_replies_below: whether an operation right below has said what a model's reply took.
        long: whether its attributes are large; then its line is written in pieces, which saves a copy.
    """

    has_replies_below = False

    def __init__(
        self,
        tracer: RecordingTracer,
        name: bytes,
        trace_id: bytes,
        head: bytes,
        identity: Identity,
        encoded: Encoded,
    ) -> None:
        tracer.writer.started()
        random_bits = tracer.random_bits  # called like this, CPython finds it at once
        self.tracer = tracer
        self._name = name
        self.trace_id = trace_id
        self.span_id = hexlify((random_bits(64) or 1).to_bytes(8, "big"))
        self.head = head
        self.identity = identity
        self.encoded = encoded
        self.kind = _INTERNAL
        self.trace_state: TraceState | None = None
        self.head_below: bytes | None = None
        self.trajectory: Any = None
        self.long = False
        self.ended = False
        self._details: Details | None = None
        self._context: SpanContext | None = None
        self.start_ns = time_ns()

    def begin_below(self) -> bytes:
        """Make ``head_below``: how the lines of spans below this one begin."""
        head = self.head_below = writer.head_below(self.trace_id, self.span_id, LOCAL_PARENT)
        return head

    def get_span_context(self) -> SpanContext:
        """The span's ids, flags and state."""
        context = self._context
        if context is None:
            context = SpanContext(
                int(self.trace_id, 16), int(self.span_id, 16), False, FLAGS, self.trace_state
            )
            self._context = context
        return context

    def is_recording(self) -> bool:
        """True until the span has ended."""
        return not self.ended

    @_harmless
    def set_attribute(self, key: str, value: writer.AttributeInput) -> None:
        """Set an attribute; None and the trajectory's identity attributes are ignored."""
        if self.ended or value is None or key in self.identity.attributes:
            return
        key = str(key)
        if len(self.encoded) < MAX_ATTRIBUTES or key in self.encoded:
            self.encoded[key] = (b",", writer.attribute(key, value))
        else:
            self._count_dropped(0)

    @_harmless
    def set_attributes(self, attributes: Mapping[str, writer.AttributeInput]) -> None:
        """Set several attributes."""
        for key, value in attributes.items():
            self.set_attribute(key, value)

    @_harmless
    def add_event(
        self,
        name: str,
        attributes: Mapping[str, writer.AttributeInput] | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Add an event, now or at ``timestamp`` (ns since the epoch)."""
        if self.ended:
            return
        events = self._detailed().events
        if len(events) >= MAX_EVENTS:
            self._count_dropped(1)
            return
        events.append(writer.event(name, timestamp or time_ns(), attributes or {}))

    @_harmless
    def add_link(
        self, context: SpanContext, attributes: Mapping[str, writer.AttributeInput] | None = None
    ) -> None:
        """Add a link to another span."""
        if self.ended or not (context.is_valid or attributes or context.trace_state):
            return
        links = self._detailed().links
        if len(links) >= MAX_LINKS:
            self._count_dropped(2)
            return
        flags = context.trace_flags | writer.HAS_IS_REMOTE | (writer.IS_REMOTE if context.is_remote else 0)
        state = context.trace_state.to_header()
        links.append(writer.link(context.trace_id, context.span_id, state, flags, attributes or {}))

    def _count_dropped(self, what: int) -> None:
        self._detailed().dropped[what] += 1

    def _detailed(self) -> Details:
        details = self._details
        if details is None:
            # In one step: while it is made, a signal handler or another thread may record on this span too.
            details = self._details = vars(self).setdefault(_MADE, Details())
        return details

    @_harmless
    def update_name(self, name: str) -> None:
        """Rename the span."""
        if not self.ended:
            self._name = writer.json_string(name)

    @_harmless
    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status. OK is final, UNSET is ignored, and only ERROR keeps a description (OTel API)."""
        if self.ended or (self._details is not None and self._details.status == StatusCode.OK.value):
            return
        if isinstance(status, Status):
            code, description = status.status_code, status.description
        else:
            code = status
        if code is not StatusCode.UNSET:
            details = self._detailed()
            details.status = code.value
            details.status_message = description if code is StatusCode.ERROR else None

    @_harmless
    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, writer.AttributeInput] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add an ``exception`` event (OTel semantic conventions for exceptions)."""
        described: dict[str, writer.AttributeInput] = {
            semconv.EXCEPTION_TYPE: qualified_name(type(exception)),
            semconv.EXCEPTION_MESSAGE: message_of(exception),
            semconv.EXCEPTION_STACKTRACE: _stack_of(exception),
            semconv.EXCEPTION_ESCAPED: str(escaped),
        }
        self.add_event("exception", {**described, **(attributes or {})}, timestamp)

    def fail(self, exception: BaseException) -> None:
        """Record an exception that left the operation, and set the status accordingly."""
        self.record_exception(exception)
        self.set_status(StatusCode.ERROR, status_message(exception))

    def end(self, end_time: int | None = None) -> None:
        """Record the span. Further calls do nothing. Never raises: what cannot be encoded is counted."""
        if self.ended:
            return
        self.ended = True
        end_ns = end_time or time_ns()
        if end_ns < self.start_ns and not end_time:  # the machine's clock was set back meanwhile
            end_ns = self.start_ns
        try:
            details = self._details
            pieces = self._line(end_ns, b"" if details is None else details.encoded())
            body = pieces if self.long else b"".join(pieces)
        except Exception as error:  # noqa: BLE001 - we are inside user code
            self.tracer.writer.counters.drop("encoding", self.identity)
            pass_on(error)
        else:
            self.tracer.writer.write(body, self.identity)
        # A task started inside keeps its context, and this span with it, for as long as it runs.
        self.encoded = {}
        if self._details is not None:
            self._details = None
            vars(self).pop(_MADE, None)

    def unfinished_line(self, longest: int | None = None) -> bytes:
        """The line this span becomes if its process dies before it ends; without an end time.

        Args:
            longest: characters of texts in a line that has nothing but what the trajectory is known by.
        """
        if longest is not None:
            return self._short_line(longest)
        details = _UNFINISHED
        if self._details is not None:
            known = replace(self._details, status=StatusCode.ERROR.value, status_message=UNFINISHED)
            details = known.encoded()
        return b"".join(self._line(0, details))

    def _line(self, end_ns: int, details: bytes) -> tuple[bytes, ...]:
        attributes, identity = self.encoded.values(), self.identity.encoded
        if identity is None:
            identity = self.identity.encode()
        state = self.trace_state
        return writer.line(
            self.tracer.scope,
            self.head,
            self.span_id,
            self._name,
            self.kind,
            self.start_ns,
            end_ns,
            (b"[", identity, *chain.from_iterable(attributes), b"]") if identity else _list_of(attributes),
            details + writer.trace_state(state.to_header()) if state else details,
        )

    def _short_line(self, longest: int) -> bytes:
        """The line of an unfinished root span with nothing but what it is known by."""
        name = writer.json_string(str(orjson.loads(self._name))[:longest])
        attributes = b"[", self.identity.shortened(longest), *self.encoded.get(semconv.SPAN_KIND, ()), b"]"
        return b"".join(
            writer.line(
                self.tracer.scope,
                self.head,
                self.span_id,
                name,
                self.kind,
                self.start_ns,
                0,
                attributes,
                _UNFINISHED,
            )
        )

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """End the span, having recorded the exception that leaves the block, if any."""
        if isinstance(exc_val, Exception):
            self.fail(exc_val)
        self.end()


def _list_of(attributes: Iterable[tuple[bytes, ...]]) -> tuple[bytes, ...]:
    """Attributes of a span that belongs to no trajectory, without the first one's comma."""
    return b"[", b"".join(chain.from_iterable(attributes))[1:], b"]"


def qualified_name(kind: type) -> str:
    """A class as OpenTelemetry names exceptions."""
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


_SILENT = {
    "CancelledError": "the task was cancelled",
    "GeneratorExit": "it was closed before its end",
}
"""What exceptions mean that usually come without a message."""


def status_message(exception: BaseException) -> str:
    """What the status of a span says that ended with ``exception``."""
    kind = type(exception).__name__
    message = message_of(exception) or _SILENT.get(kind, "")
    return f"{kind}: {message}" if message else kind


def message_of(exception: BaseException) -> str:
    """What an exception says, cut to a bounded length. Never raises."""
    try:
        return _cut(str(exception))
    except Exception as error:  # noqa: BLE001 - a user's __str__ may do anything
        pass_on(error)
        return "<its message could not be read>"


def _stack_of(exception: BaseException) -> str:
    try:
        return _cut("".join(traceback.format_exception(type(exception), exception, exception.__traceback__)))
    except Exception as error:  # noqa: BLE001 - formatting calls the user's __str__
        pass_on(error)
        return "".join(traceback.format_tb(exception.__traceback__))


def _cut(text: str) -> str:
    if len(text) <= MAX_EXCEPTION_TEXT:
        return text
    half = MAX_EXCEPTION_TEXT // 2
    return f"{text[:half]}… ({len(text) - 2 * half} more characters) …{text[-half:]}"
