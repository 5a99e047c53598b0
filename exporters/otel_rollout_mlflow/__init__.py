"""MLflow as a destination for rollout traces: an ordinary OpenTelemetry ``SpanExporter``.

Registered under the name ``mlflow`` in the entry-point group ``opentelemetry_traces_exporter``, so the
forwarder, and any other OpenTelemetry program (``OTEL_TRACES_EXPORTER=mlflow``), finds it by that name.
"""

from __future__ import annotations

try:
    from otel_rollout_mlflow.exporter import MlflowSpanExporter
except ModuleNotFoundError as error:
    if (error.name or "").startswith("otel_rollout"):
        raise
    raise ModuleNotFoundError(
        f"The MLflow exporter needs the package {error.name!r}: pip install 'otel-rollout[mlflow]'",
        name=error.name,
    ) from error

__all__ = ["MlflowSpanExporter"]
