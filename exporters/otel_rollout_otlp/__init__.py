"""OTLP as a destination: a Collector, or any backend that speaks the OpenTelemetry protocol.

Registered under the name ``otlp`` in our own entry-point group ``otel_rollout_exporter``, not in
OpenTelemetry's: there the SDK's exporter has that name, and other programs shall go on finding it.
"""

from __future__ import annotations

try:
    from otel_rollout_otlp.exporter import OtlpSpanExporter
except ModuleNotFoundError as error:
    if (error.name or "").startswith("otel_rollout"):
        raise
    raise ModuleNotFoundError(
        f"The OTLP exporter needs the package {error.name!r}: pip install 'otel-rollout[otlp]'",
        name=error.name,
    ) from error

__all__ = ["OtlpSpanExporter"]
