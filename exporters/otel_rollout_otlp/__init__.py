"""Export rollout traces over OTLP, to a Collector or any backend that speaks OTLP.

The exporter is registered as ``otlp`` in our own entry-point group ``otel_rollout_exporter``. In
OpenTelemetry's group ``otlp`` is the SDK's exporter, which other programs still find.
"""

from __future__ import annotations

from otel_rollout.exporting.base import needing

with needing("otlp"):
    from otel_rollout_otlp.exporter import OtlpSpanExporter

__all__ = ["OtlpSpanExporter"]
