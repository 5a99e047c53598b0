"""An agent that knows nothing of otel_rollout: OpenTelemetry's SDK, set up by variables alone."""

import os
import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if __name__ == "__main__":
    turns = int(sys.argv[1])
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=1 << 20))
    tracer = provider.get_tracer("an-agent", "1.0")
    carried = {"traceparent": os.environ.get("TRACEPARENT", "")}
    above = TraceContextTextMapPropagator().extract(carried)
    with tracer.start_as_current_span("agent", context=above, kind=trace.SpanKind.SERVER):
        for turn in range(turns):
            with (
                tracer.start_as_current_span("turn", attributes={"turn": turn, "done": turn == turns - 1}),
                tracer.start_as_current_span("tool", attributes={"arguments": ["a", "b"]}) as span,
            ):
                span.add_event("called", {"seconds": 0.5})
    provider.shutdown()
    assert "otel_rollout" not in sys.modules
