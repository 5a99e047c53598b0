"""Export rollout traces to MLflow, by an OpenTelemetry ``SpanExporter``.

The exporter is registered as ``mlflow`` in the entry-point group ``opentelemetry_traces_exporter``. So the
forwarder, and any other OpenTelemetry program (``OTEL_TRACES_EXPORTER=mlflow``), finds it.
"""

from __future__ import annotations

from otel_rollout.exporting.base import needing

with needing("mlflow", " (for a database: [mlflow-local])"):
    from otel_rollout_mlflow.exporter import MlflowSpanExporter

__all__ = ["MlflowSpanExporter"]
