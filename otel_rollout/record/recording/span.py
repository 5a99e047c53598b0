"""Record one span, with the whole ``Span`` API, as one line at its end."""

from __future__ import annotations

import functools
from binascii import hexlify
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from time import time_ns
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

import orjson
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from otel_rollout.base import semconv
from otel_rollout.base.errors import pass_on, warn_once
from otel_rollout.base.given import items
from otel_rollout.otlp import writer
from otel_rollout.otlp.writer import Details, valid_time
from otel_rollout.record.recording.counters import Counters
from otel_rollout.record.recording.exception_text import message_of, qualified_name, stack_of, status_message
from otel_rollout.record.recording.flusher import Line
from otel_rollout.record.recording.identity import Identity

MAX_ATTRIBUTES = 1024
MAX_EVENTS = 1024
MAX_LINKS = 128
"""Maximum attributes, events and links of one span; further ones are counted as dropped."""
ATTRIBUTE, EVENT, LINK = 0, 1, 2
"""Index of each count in ``Details.dropped``."""
_PARTS = "attribute", "event", "link"
"""Name of what each count of ``Details.dropped`` counts."""

UNFINISHED = "process ended before the trajectory did"
"""Status message of a trajectory whose process died."""
_UNFINISHED = Details(status=StatusCode.ERROR.value, status_message=UNFINISHED).encoded()

FLAGS = TraceFlags(TraceFlags.SAMPLED | 0x02)
"""Trace flags: sampled, and with a random trace id (W3C Trace Context level 2)."""
_INTERNAL = SpanKind.INTERNAL.value + 1
LOCAL_PARENT = int(FLAGS) | writer.HAS_IS_REMOTE
REMOTE_PARENT = LOCAL_PARENT | writer.IS_REMOTE
"""Flags of a span whose parent is in this process, or in another one."""

_DETAILS_KEY = "_made_details"
"""Key in a span's ``__dict__`` of the details, while they exist."""

Encoded = dict[str, tuple[bytes, ...]]
"""Name → encoded attribute: its pieces, the first of which begins with a comma. The span's end joins them."""

Method = TypeVar("Method", bound=Callable[..., None])


class LineWriter(Protocol):
    """Counts spans, and writes their lines."""

    counters: Counters

    def started(self) -> None:
        """Count a span that has started."""

    def write(self, body: Line, identity: Identity) -> bool:
        """Record a line; return False if it was dropped."""


class SpanTracer(Protocol):
    """A tracer, as its spans see it."""

    writer: LineWriter
    scope: bytes
    id_mark: bytes
    random_bits: Callable[[int], int]


def harmless(dropped: int | None) -> Callable[[Method], Method]:
    """Keep exceptions of a user's value, raised while it is encoded, from user code.

    Args:
        dropped: index of the count that grows when the call fails; None: the call adds nothing to a span.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def guarded(self: RecordingSpan, *args: Any, **kwargs: Any) -> None:
            try:
                method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the user's mistake is no internal error
                pass_on(error)
                if dropped is not None:
                    self._count_failed(dropped, args[0] if args else None, error)

        return cast("Method", guarded)

    return decorate


class RecordingSpan(Span):
    """A span that is recorded when it ends.

    This class is on the hot path. So the span's ids are hex digits as bytes, and its name is JSON, as in the
    line. Its ``SpanContext`` is made on the first request. Its fields are public, without accessors.

    Attributes:
        head_below: beginning of the lines of spans below this one; None before the first such span.
        trajectory: the trajectory whose root span this is, for ``capture``.
        replies_below: the model's replies that spans below count; True if not all of them are known.
        long: whether the attributes are large; then the line is written in pieces, which saves a copy.
    """

    replies_below: bool | frozenset[Any] = False
    _exceptions = (True, True)
    """Whether an exception that leaves ``with span:`` is recorded, and sets the status."""

    def __init__(
        self,
        tracer: SpanTracer,
        name: bytes,
        trace_id: bytes,
        head: bytes,
        identity: Identity,
        encoded: Encoded,
    ) -> None:
        tracer.writer.started()
        random_bits = tracer.random_bits  # a local name: CPython calls it without a look-up
        self.tracer = tracer
        self._name = name
        self.trace_id = trace_id
        # 40 random bits behind the run's mark: `provider.mark_of`.
        self.span_id = tracer.id_mark + hexlify(random_bits(40).to_bytes(5))
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

    @property
    def events(self) -> Sequence[bytes]:
        """The events so far, as OTLP/JSON."""
        return self._details.events if self._details is not None else ()

    @property
    def start_time(self) -> int:
        """The start, in ns since the epoch, by the SDK's name."""
        return self.start_ns

    def begin_below(self) -> bytes:
        """Make ``head_below``, the beginning of the lines of spans below this one."""
        head = self.head_below = writer.head_below(self.trace_id, self.span_id, LOCAL_PARENT)
        return head

    def get_span_context(self) -> SpanContext:
        """Return the span's ids, flags and trace state."""
        context = self._context
        if context is None:
            context = SpanContext(
                int(self.trace_id, 16), int(self.span_id, 16), False, FLAGS, self.trace_state
            )
            self._context = context
        return context

    def is_recording(self) -> bool:
        """Return True until the span has ended."""
        return not self.ended

    @harmless(ATTRIBUTE)
    def set_attribute(self, key: str, value: writer.AttributeInput) -> None:
        """Set an attribute; ignore None, and the attributes of the trajectory's identity."""
        if self.ended or value is None or key in self.identity.attributes:
            return
        key = str(key)
        if len(self.encoded) < MAX_ATTRIBUTES or key in self.encoded:
            self.encoded[key] = (b",", writer.attribute(key, value))
        else:
            self._count_dropped(ATTRIBUTE, MAX_ATTRIBUTES)

    @harmless(ATTRIBUTE)
    def set_attributes(self, attributes: Mapping[str, writer.AttributeInput]) -> None:
        """Set several attributes."""
        for key, value in items(attributes):
            self.set_attribute(key, value)

    @harmless(EVENT)
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
            self._count_dropped(EVENT, MAX_EVENTS)
            return
        time = time_ns()
        events.append(writer.event(name, valid_time(timestamp, time), attributes or {}))

    @harmless(LINK)
    def add_link(
        self, context: SpanContext, attributes: Mapping[str, writer.AttributeInput] | None = None
    ) -> None:
        """Add a link to another span."""
        if self.ended or not (context.is_valid or attributes or context.trace_state):
            return
        links = self._detailed().links
        if len(links) >= MAX_LINKS:
            self._count_dropped(LINK, MAX_LINKS)
            return
        links.append(link_to(context, attributes))

    def set_start(self, kind: SpanKind, links: Sequence[Link] | None, start_time: int | None) -> None:
        """Set what another library gave to ``start_span``; ignore values of wrong types."""
        if isinstance(kind, SpanKind):
            self.kind = kind.value + 1
        if start_time is not None:
            self.start_ns = valid_time(start_time, self.start_ns)
        if links is not None:
            self._add_links(links)

    @harmless(LINK)
    def _add_links(self, links: Sequence[Link]) -> None:
        """Add several links; an unusable one does not prevent the others."""
        for link in islice(links, MAX_LINKS):
            self._add(link)
        if len(links) > MAX_LINKS:
            self._count_dropped(LINK, MAX_LINKS, len(links) - MAX_LINKS)

    @harmless(LINK)
    def _add(self, link: Link) -> None:
        self.add_link(link.context, link.attributes)

    def _count_failed(self, index: int, name: object, error: Exception) -> None:
        self._detailed().dropped[index] += 1
        writer.warn_of_failure(_PARTS[index], name, error)

    def _count_dropped(self, index: int, limit: int, number: int = 1) -> None:
        dropped, part = self._detailed().dropped, _PARTS[index]
        dropped[index] += number
        if dropped[index] == number:
            warn_once(
                f"the span {orjson.loads(self._name)!r} has more than {limit} {part}s; further ones are "
                "counted, and not recorded",
                f"more {part}",
            )

    def _detailed(self) -> Details:
        details = self._details
        if details is None:
            # `setdefault` is atomic: a signal handler or another thread may record on this span, too.
            details = self._details = vars(self).setdefault(_DETAILS_KEY, Details())
        return details

    @harmless(None)
    def update_name(self, name: str) -> None:
        """Rename the span."""
        if not self.ended:
            self._name = writer.json_string(name)

    @harmless(None)
    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status: OK is final, UNSET is ignored, only ERROR has a description."""
        if self.ended or (self._details is not None and self._details.status == StatusCode.OK.value):
            return
        if isinstance(status, Status):
            code, description = status.status_code, status.description
        else:
            code = status
        if code is not StatusCode.UNSET:
            details = self._detailed()
            details.status, details.status_message = code.value, None
            if code is StatusCode.ERROR and description is not None:
                details.status_message = str(description)

    @harmless(EVENT)
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
            semconv.EXCEPTION_STACKTRACE: stack_of(exception),
            semconv.EXCEPTION_ESCAPED: str(escaped),
        }
        if attributes is not None:
            described.update(items(attributes))
        self.add_event("exception", described, timestamp)

    def fail(self, exception: BaseException, record: bool = True, set_status: bool = True) -> None:
        """Record an exception that left the operation, and set the status accordingly."""
        if record:
            self.record_exception(exception)
        if set_status:
            self.set_status(StatusCode.ERROR, status_message(exception))

    def end(self, end_time: int | None = None) -> None:
        """Record the span, or count it as dropped if it cannot be encoded.

        Further calls do nothing.
        """
        if self.ended:
            return
        self.ended = True
        if end_time is None or not (end_ns := valid_time(end_time, 0)):
            end_ns = time_ns()
            if end_ns < self.start_ns:  # the machine's clock was set back
                end_ns = self.start_ns
        details = self._details
        try:
            pieces = self._line(end_ns, b"" if details is None else details.encoded())
            body = pieces if self.long else b"".join(pieces)
        except Exception as error:  # noqa: BLE001 - we are inside user code
            self.tracer.writer.counters.drop("encoding", self.identity)
            pass_on(error)
        else:
            self.tracer.writer.write(body, self.identity)
        # Release the attributes: a task that was started inside keeps this span in its context.
        self.encoded = {}
        if details is not None:
            self._details = None
            vars(self).pop(_DETAILS_KEY, None)

    def unfinished_line(self, longest: int | None = None) -> bytes:
        """Return the line, without end time, to be recorded if the process dies.

        Args:
            longest: if given, return only the trajectory's identity, with texts cut to this many characters.
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
        """Return the line of an unfinished root span with its identity alone."""
        name = writer.json_string(str(orjson.loads(self._name))[:longest])
        attributes = b"[", self.identity.shortened(longest), *self.encoded.get(semconv.SPAN_KIND, ()), b"]"
        ids = self.tracer.scope, self.head, self.span_id
        return b"".join(writer.line(*ids, name, self.kind, self.start_ns, 0, attributes, _UNFINISHED))

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """End the span; first record an exception that leaves the block, if the caller wants that."""
        if isinstance(exc_val, Exception):
            self.fail(exc_val, *self._exceptions)
        self.end()


def link_to(context: SpanContext, attributes: Mapping[str, writer.AttributeInput] | None) -> bytes:
    """Encode a link to another span."""
    flags, state = context.trace_flags | remote_bits(context), context.trace_state.to_header()
    return writer.link(context.trace_id, context.span_id, state, flags, attributes or {})


def remote_bits(context: SpanContext | None) -> int:
    """Return the flags that say whether a parent or linked span is in another process."""
    return writer.HAS_IS_REMOTE | (writer.IS_REMOTE if context is not None and context.is_remote else 0)


def _list_of(attributes: Iterable[tuple[bytes, ...]]) -> tuple[bytes, ...]:
    """Encode the attributes of a span without identity; drop the first comma."""
    return b"[", b"".join(chain.from_iterable(attributes))[1:], b"]"
