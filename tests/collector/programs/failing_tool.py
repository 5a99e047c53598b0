"""Deliver a scored trajectory whose tool fails, and its metrics."""

import contextlib
import os
import uuid
from typing import Any

from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score


@rollout_trace_op(kind="LLM")
def model() -> dict[str, Any]:
    """Give a reply that is cut."""
    usage = {"prompt_tokens": 10, "completion_tokens": 3}
    return {"model": "policy", "choices": [{"finish_reason": "length"}], "usage": usage}


@rollout_trace_op(kind="TOOL")
def tool() -> None:
    raise ValueError("no such tool")


def main() -> None:
    """Record, and wait for delivery."""
    endpoint = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{endpoint}/v1/metrics"))
    resource = Resource.create({"service.instance.id": str(uuid.uuid4())})
    metrics.set_meter_provider(MeterProvider([reader], resource))
    with (
        contextlib.suppress(ValueError),
        rollout_trace_attr(sample_index=1, step=1, rollout_n=0, validate=False),
    ):
        model()
        score("reward", 1.0)
        tool()
    assert not otel_rollout.shutdown(60).undelivered
    reader.force_flush()


if __name__ == "__main__":
    main()
