"""Counts of the delivery report as OpenTelemetry metrics."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op

@rollout_trace_op
def op(): ...

otel_rollout.configure("test-file")
for index in range(3):
    with rollout_trace_attr(step=1, trace=index != 0):  # before the application has set its provider
        op()
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))

def seen():
    found = {}
    for of_resource in reader.get_metrics_data().resource_metrics:
        for of_scope in of_resource.scope_metrics:
            for metric in of_scope.metrics:
                for point in metric.data.data_points:
                    key = "/".join([metric.name, *map(str, point.attributes.values())])
                    found[key] = point.value
    return found

import time
deadline = time.monotonic() + 30
while seen()["otel_rollout.delivered/test-file"] < 4 and time.monotonic() < deadline:
    time.sleep(0.05)
print(json.dumps(seen()))
otel_rollout.shutdown()
otel_rollout.configure("test-file")
op()
print(json.dumps(seen()))
"""


def test_meter_provider_gets_the_counts_of_the_report(test_exporters: None, tmp_path, monkeypatch) -> None:
    """Counts are offered to a provider that is set late, and again for a second run."""
    monkeypatch.setenv("OTEL_TEST_FILE", str(tmp_path / "delivered"))
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    first, second = map(json.loads, ran.stdout.splitlines())
    assert first == {
        "otel_rollout.started": 4,
        "otel_rollout.recorded": 4,
        "otel_rollout.sampled_out/switched_off": 1,
        "otel_rollout.delivered/test-file": 4,
        "otel_rollout.rejected/test-file": 0,
        "otel_rollout.retried/test-file": 0,
    }
    assert (second["otel_rollout.started"], second["otel_rollout.recorded"]) == (1, 1)
