"""Record until spans are dropped, and deliver them and the metrics."""

import os
import uuid

from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

import otel_rollout
from otel_rollout import rollout_trace_op

REDACTION = "tests.collector.programs.dropped_span:refuse_dropped"


def refuse_dropped(line: str) -> str:
    """Fail for the span that is to be dropped."""
    if "to be dropped" in line:
        raise ValueError("not this one")
    return line


@rollout_trace_op(name="to be dropped")
def dropped() -> None:
    """Record a span that redaction refuses."""


@rollout_trace_op
def delivered() -> None:
    """Record a span."""


def main() -> None:
    """Record both, and wait for delivery."""
    endpoint = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{endpoint}/v1/metrics"))
    metrics.set_meter_provider(
        MeterProvider([reader], Resource.create({"service.instance.id": str(uuid.uuid4())}))
    )
    otel_rollout.configure(redact=REDACTION)
    dropped()
    delivered()
    reader.force_flush()
    otel_rollout.shutdown(60)


if __name__ == "__main__":
    main()
