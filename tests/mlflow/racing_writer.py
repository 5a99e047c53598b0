"""One of several concurrent writers: ``racing_writer.py URI PROJECT TRACES``.

Says "ready", waits for a line on standard input, and says "delivered". What cannot be delivered for the
moment it sends again for a while, as the forwarder does.
"""

import sys
import time

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_rollout.exporting.api import FailureKind
from otel_rollout_mlflow import MlflowSpanExporter


def main(uri: str, project: str, traces: int) -> None:
    """Write each trace by itself, so that processes write at once."""
    exporter = MlflowSpanExporter(tracking_uri=uri)
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("racing")
    print("ready", flush=True)
    sys.stdin.readline()
    deadline = time.monotonic() + 120
    for number in range(traces):
        memory.clear()
        attributes = {"rollout.project_name": project, "rollout.score.reward": float(number)}
        with tracer.start_as_current_span("Agent.run", attributes=attributes):
            pass
        while exporter.export(memory.get_finished_spans()) is not SpanExportResult.SUCCESS:
            assert exporter.last_failure is not None
            if exporter.last_failure.kind is not FailureKind.UNAVAILABLE or time.monotonic() > deadline:
                print(exporter.last_failure)
                return
            time.sleep(0.2)
    print("delivered")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
