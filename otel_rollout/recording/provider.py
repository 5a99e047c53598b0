"""The recording ``TracerProvider``: private to us, on the OTel API alone.

It is never made the global provider. Spans of other libraries nest all the same, because the current span
lives in the OTel context, which is shared.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Tracer,
    TracerProvider,
    use_span,
)

from otel_rollout.otlp import writer as otlp_json
from otel_rollout.recording.identity import identity_in
from otel_rollout.recording.sampling import Decision
from otel_rollout.recording.span import LOCAL_PARENT, REMOTE_PARENT, Encoded, RecordingSpan
from otel_rollout.recording.writer import SegmentWriter


class RecordingTracerProvider(TracerProvider):
    """Hands out tracers that record into one writer.

    Args:
        writer: where ended spans go.
        decision: whether a trace that begins with us is recorded; None: all are.
    """

    def __init__(self, writer: SegmentWriter, decision: Decision | None = None) -> None:
        self.writer = writer
        self.decision = decision
        # Training seeds the global generator: ids drawn from it would repeat in every worker, and
        # drawing them would change the training's own random numbers.
        self.random_bits = random.Random(os.urandom(16)).getrandbits  # noqa: S311 - ids, not secrets

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Mapping[str, otlp_json.AttributeInput] | None = None,
    ) -> RecordingTracer:
        """A tracer for one instrumentation scope."""
        scope = otlp_json.scope_head(
            instrumenting_module_name, instrumenting_library_version, attributes, schema_url
        )
        return RecordingTracer(self, scope)


class UnrecordedSpan(NonRecordingSpan):
    """A span of a trace that is sampled out, or left out by the user."""


class RecordingTracer(Tracer):
    """Starts recording spans."""

    def __init__(self, provider: RecordingTracerProvider, scope: bytes) -> None:
        self.writer = provider.writer
        self.scope = scope
        self.random_bits = provider.random_bits
        self._decision = provider.decision

    def start(
        self, name: str, parent: Span, context: Context | None, encoded: Encoded
    ) -> RecordingSpan | None:
        """Start a span below ``parent``; None when its trace is not recorded.

        That is the parent's decision, and where there is no parent the sampler's.

        Args:
            encoded: the attributes the span has from its start; the span's own from now on.
        """
        if type(parent) is RecordingSpan:
            return self.start_below(parent, otlp_json.json_string(name), encoded)
        above = parent.get_span_context()
        if above.is_valid:
            if not above.trace_flags.sampled:
                return None
            trace_id, parent_id = b"%032x" % above.trace_id, b"%016x" % above.span_id
        else:
            number = self.random_bits(128) or 1
            if self._decision is not None and not self._decision(number, name):
                return None
            trace_id, parent_id = b"%032x" % number, b""
        head = otlp_json.head_below(trace_id, parent_id, REMOTE_PARENT if above.is_remote else LOCAL_PARENT)
        encoded_name = otlp_json.json_string(name)
        span = RecordingSpan(self, encoded_name, trace_id, head, identity_in(context), encoded)
        if above.is_valid:
            span.trace_state = above.trace_state or None
        return span

    def start_below(self, parent: RecordingSpan, name: bytes, encoded: Encoded) -> RecordingSpan:
        """Start a span below one of ours; its name is given as JSON."""
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
        """Start a span without making it the current one (OTel API)."""
        parent = trace.get_current_span(context)
        span = self.start(name, parent, context, {})
        if span is None:
            return self.unrecorded(parent)
        span.kind = kind.value + 1
        span.start_ns = start_time or span.start_ns
        if attributes:
            span.set_attributes(attributes)
        for link in links or ():
            span.add_link(link.context, link.attributes)
        return span

    def unrecorded(self, parent: Span) -> UnrecordedSpan:
        """A span that says "not recorded" to everything below, in other processes too (trace flags 00)."""
        above = parent.get_span_context()
        trace_id = above.trace_id if above.is_valid else self.random_bits(128) or 1
        flags, state = trace.TraceFlags(0), above.trace_state
        return UnrecordedSpan(SpanContext(trace_id, self.random_bits(64) or 1, False, flags, state))

    @contextmanager
    def start_as_current_span(  # type: ignore[override] # the API's return type is private
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
        """Start a span and make it the current one inside the block (OTel API)."""
        span = self.start_span(name, context, kind, attributes, links, start_time)
        with use_span(span, end_on_exit, record_exception, set_status_on_exception):
            yield span
