"""Record two runs under a late MeterProvider, and print the metrics as JSON."""

import json
import time

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op


@rollout_trace_op
def operation() -> None:
    """Do nothing."""


def collected(reader: InMemoryMetricReader) -> dict[str, float]:
    """Return name and attributes → value of each number that a reader collects."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        "/".join([metric.name, *map(str, (point.attributes or {}).values())]): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    }


if __name__ == "__main__":
    otel_rollout.configure("test-file")
    for index in range(3):
        with rollout_trace_attr(step=1, trace=index != 0):  # before the application has set its provider
            operation()
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    deadline = time.monotonic() + 30
    while collected(reader)["otel_rollout.delivered/test-file"] < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    print(json.dumps(collected(reader)))
    otel_rollout.shutdown()
    otel_rollout.configure("test-file")
    operation()
    print(json.dumps(collected(reader)))
