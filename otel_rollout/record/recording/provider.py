"""Provide tracers that record, with OpenTelemetry's API but without its SDK.

This provider is never the global one. Spans of other libraries nest with ours nevertheless, because all of
them share OpenTelemetry's context.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context, detach
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Tracer,
    TracerProvider,
    TraceState,
    set_span_in_context,
    use_span,
)

from otel_rollout.base import semconv
from otel_rollout.base.finalizers import attach, is_collecting
from otel_rollout.otlp import writer as otlp_json
from otel_rollout.record.recording.counters import Counters
from otel_rollout.record.recording.flusher import Line
from otel_rollout.record.recording.identity import NO_IDENTITY, Identity, identity_in
from otel_rollout.record.recording.sampling import Decision
from otel_rollout.record.recording.span import LOCAL_PARENT, REMOTE_PARENT, Encoded, LineWriter, RecordingSpan
from otel_rollout.record.recording.writer import SegmentWriter

try:  # as a decorator of a coroutine, it waits for the coroutine's end
    from opentelemetry.util._decorator import _agnosticcontextmanager as span_context
except ImportError:  # a version of the API without this private name
    span_context = contextmanager  # type: ignore[assignment]


RANDOM_BITS: Final = 40
"""Bits of a span's id after the mark. Among two million traces of a thousand spans each, about one trace has
two spans with the same id."""


def mark_of(run_id: str) -> bytes:
    """Return the mark of a run: the first six hex digits of its spans' ids, which its receivers know.

    Another program that joins a trajectory knows the id of one of the run's spans, and could send a span with
    the same id, which would overwrite the run's. A receiver recognizes such an id by the mark. The receiver
    cannot look the id up, because the run's span may still be open, or be stored on another node. Of the ids
    that other programs draw, one in 17 million has the mark by chance.
    """
    return blake2b(run_id.encode(errors="replace"), digest_size=3).hexdigest().encode()


class RecordingTracerProvider(TracerProvider):
    """Makes tracers that record with one writer.

    Args:
        writer: records the spans that have ended.
        decision: decides whether a trace that starts here is recorded; None: every trace is.
        run_id: the run, which marks the ids of its spans.
    """

    def __init__(self, writer: SegmentWriter, decision: Decision | None = None, run_id: str = "") -> None:
        self.writer = writer
        self.decision = decision
        self.id_mark = mark_of(run_id)
        # A generator of our own: training seeds the global one. Its ids would repeat in every worker, and
        # each draw would change the random numbers of training.
        self.random_bits = random.Random(os.urandom(16)).getrandbits  # noqa: S311 - ids, not secrets

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Mapping[str, otlp_json.AttributeInput] | None = None,
    ) -> RecordingTracer:
        """Return a tracer for one instrumentation scope."""
        name = otlp_json.text_of(instrumenting_module_name)
        version, schema = instrumenting_library_version, schema_url
        scope = otlp_json.scope_head(
            name,
            None if version is None else otlp_json.text_of(version),
            attributes if issubclass(type(attributes), Mapping) else None,
            None if schema is None else otlp_json.text_of(schema),
        )
        if name == semconv.SCOPE:
            return RecordingTracer(self, scope, self.writer)
        return RecordingTracer(self, scope, ScopeWriter(self.writer, name))


class ScopeWriter:
    """Writes the spans of one instrumentation scope of another library.

    Our own spans go to the :class:`SegmentWriter` directly, so that counting costs them nothing.

    Args:
        writer: writes the spans.
        scope: name of the scope.

    Attributes:
        counters: counts of what this process did not record.
    """

    def __init__(self, writer: SegmentWriter, scope: str) -> None:
        self.counters: Counters = writer.counters
        self.started = writer.started
        self._write = writer.write
        self._scope = scope

    def write(self, body: Line, identity: Identity = NO_IDENTITY) -> bool:
        """Record and count a line, see :meth:`SegmentWriter.write`."""
        is_recorded = self._write(body, identity)
        if is_recorded:
            self.counters.recorded_by(self._scope)
        return is_recorded


class UnrecordedSpan(NonRecordingSpan):
    """A span of an unrecorded trace: sampled out, or excluded by ``trace=False``."""


Place = tuple[bytes, bytes, TraceState | None]
"""Where a span stands in a trace: its trace id, the beginning of its line, and its trace state. A plain
tuple, because a named one takes 0.14 us longer to make."""


class BlockTracer(Tracer):
    """A tracer with OpenTelemetry's way to make a span current inside a block."""

    @span_context
    def start_as_current_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, otlp_json.AttributeInput] | None = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> Iterator[Span]:
        """Start a span that is current inside the block (OpenTelemetry's API)."""
        span = self.start_span(name, context, kind, attributes, links, start_time)
        with current_span(span, end_on_exit, record_exception, set_status_on_exception):
            yield span


class RecordingTracer(BlockTracer):
    """A tracer whose spans are recorded."""

    def __init__(self, provider: RecordingTracerProvider, scope: bytes, writer: LineWriter) -> None:
        self.provider = provider
        self.writer = writer
        self.scope = scope
        self.random_bits = provider.random_bits
        self.id_mark = provider.id_mark
        self._decision = provider.decision

    def start(
        self, name: str, parent: Span, context: Context | None, encoded: Encoded
    ) -> RecordingSpan | None:
        """Start a span below ``parent``; return None if its trace is not recorded.

        The parent decides whether the trace is recorded. Without a parent, the sampler decides.

        Args:
            name: the span's name.
            parent: the span above, or an invalid span.
            context: the context with the trajectory's identity.
            encoded: the attributes at the span's start. The span takes over the dict.
        """
        if type(parent) is RecordingSpan:
            return self.start_below(parent, otlp_json.json_string(name), encoded)
        place = self.place(parent, name)
        if place is None:
            return None
        trace_id, head, trace_state = place
        name_json, identity = otlp_json.json_string(name), identity_in(context)
        span = RecordingSpan(self, name_json, trace_id, head, identity, encoded)
        span.trace_state = trace_state
        return span

    def start_apart(self, name: str, context: Context, encoded: Encoded) -> RecordingSpan:
        """Start the first span of a trace that is recorded whatever the sampler decides.

        Args:
            name: the span's name.
            context: the context with a trajectory's identity.
            encoded: the attributes at the span's start. The span takes over the dict.
        """
        trace_id = b"%032x" % (self.random_bits(128) or 1)
        head = otlp_json.head_below(trace_id, b"", LOCAL_PARENT)
        return RecordingSpan(self, otlp_json.json_string(name), trace_id, head, identity_in(context), encoded)

    def place(self, parent: Span, name: str) -> Place | None:
        """Return the place of a span below ``parent``; None if its trace is not recorded.

        Args:
            parent: a span of another provider, or an invalid span.
            name: the span's name.
        """
        above = parent.get_span_context()
        if above.is_valid:
            if not above.trace_flags.sampled:
                return None
            trace_id, parent_id = b"%032x" % above.trace_id, b"%016x" % above.span_id
            trace_state = above.trace_state or None
        else:
            number = self.random_bits(128) or 1
            if self._decision is not None and not self._decision(number, name):
                return None
            trace_id, parent_id, trace_state = b"%032x" % number, b"", None
        head = otlp_json.head_below(trace_id, parent_id, REMOTE_PARENT if above.is_remote else LOCAL_PARENT)
        return trace_id, head, trace_state

    def start_below(self, parent: RecordingSpan, name: bytes, encoded: Encoded) -> RecordingSpan:
        """Start a span below a recording span; ``name`` is JSON."""
        head = parent.head_below or parent.begin_below()
        span = RecordingSpan(self, name, parent.trace_id, head, parent.identity, encoded)
        if parent.trace_state is not None:
            span.trace_state = parent.trace_state
        return span

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, otlp_json.AttributeInput] | None = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        """Start a span without making it current (OpenTelemetry's API).

        Arguments of wrong types raise nothing: libraries that instrument others run inside user code.
        """
        parent = trace.get_current_span(context)
        span = self.start(otlp_json.text_of(name), parent, context, {})
        if span is None:
            return self.unrecorded(parent)
        span.set_start(kind, links, start_time)
        if attributes is not None:
            span.set_attributes(attributes)
        return span

    def unrecorded(self, parent: Span) -> UnrecordedSpan:
        """Return a span below which nothing is recorded, in any process.

        The span's trace flags are 00.
        """
        above = parent.get_span_context()
        trace_id = above.trace_id if above.is_valid else self.random_bits(128) or 1
        flags, state = trace.TraceFlags(0), above.trace_state
        return UnrecordedSpan(SpanContext(trace_id, self.random_bits(64) or 1, False, flags, state))


@contextmanager
def current_span(
    span: Span, end_on_exit: bool, record_exception: bool, set_status_on_exception: bool
) -> Iterator[None]:
    """Make a span current inside the block, as the API's ``use_span`` does.

    For a span of ours, the exception that leaves the block stays as it is: ``use_span`` would call its
    ``__str__``, whose own exception would replace it. In a garbage collection, the context stays as it is.
    """
    if not span.get_span_context().is_valid:  # an invalid current span would hide the span around it
        yield
        return
    if not isinstance(span, (RecordingSpan, NonRecordingSpan)):  # the application's
        with use_span(span, end_on_exit, record_exception, set_status_on_exception):
            yield
        return
    token = attach(set_span_in_context(span))
    try:
        yield
    except Exception as error:
        if isinstance(span, RecordingSpan):
            span.fail(error, record_exception, set_status_on_exception)
        raise
    finally:
        if token is not None and not is_collecting():
            detach(token)
        if end_on_exit:
            span.end()
