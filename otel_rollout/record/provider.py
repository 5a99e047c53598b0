"""The recording ``TracerProvider``: private to us, on the OTel API alone.

It is never made the global provider. Spans of other libraries nest all the same, because the current span
lives in the OTel context, which is shared.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import time_ns

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

from otel_rollout.record import otlp_json
from otel_rollout.record.identity import identity_in
from otel_rollout.record.segment import SegmentWriter
from otel_rollout.record.span import RecordingSpan

_INTERNAL = SpanKind.INTERNAL.value + 1


class RecordingTracerProvider(TracerProvider):
    """Hands out tracers that record into one writer.

    Args:
        writer: where ended spans go.
    """

    def __init__(self, writer: SegmentWriter) -> None:
        self.writer = writer
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


class RecordingTracer(Tracer):
    """Starts recording spans."""

    def __init__(self, provider: RecordingTracerProvider, scope: bytes) -> None:
        self._writer = provider.writer
        self._random_bits = provider.random_bits
        self._scope = scope

    def start(
        self,
        name: str,
        parent: Span,
        context: Context | None,
        kind: int = _INTERNAL,
        start_ns: int | None = None,
    ) -> RecordingSpan | None:
        """Start a span below ``parent``; None when the parent says that its trace is not recorded."""
        state, remote = None, False
        if type(parent) is RecordingSpan:
            trace_id, parent_id = parent.trace_id, parent.span_id
            identity, state = parent.identity, parent.trace_state
        else:
            identity = identity_in(context)
            above = parent.get_span_context()
            if above.is_valid:
                if not above.trace_flags.sampled:
                    return None
                trace_id, parent_id = b"%032x" % above.trace_id, b"%016x" % above.span_id
                state, remote = above.trace_state or None, above.is_remote
            else:
                trace_id, parent_id = b"%032x" % (self._random_bits(128) or 1), b""
        writer = self._writer
        writer.started()
        return RecordingSpan(
            writer,
            self._scope,
            name,
            trace_id,
            b"%016x" % (self._random_bits(64) or 1),
            parent_id,
            identity,
            kind,
            start_ns or time_ns(),
            state,
            remote,
        )

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
        span = self.start(name, parent, context, kind.value + 1, start_time)
        if span is None:
            above = parent.get_span_context()
            return NonRecordingSpan(
                SpanContext(
                    above.trace_id, self._random_bits(64) or 1, False, above.trace_flags, above.trace_state
                )
            )
        if attributes:
            span.set_attributes(attributes)
        for link in links or ():
            span.add_link(link.context, link.attributes)
        return span

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
