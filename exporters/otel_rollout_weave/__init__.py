"""Export rollout traces to W&B Weave.

The exporter is registered as ``weave`` in the entry-point group ``opentelemetry_traces_exporter``. So the
forwarder, and any other OpenTelemetry program (``OTEL_TRACES_EXPORTER=weave``), finds it. The exporter speaks
the protocol of Weave's trace server, and imports neither ``weave`` nor ``wandb``.
"""

from __future__ import annotations

from otel_rollout.exporting.base import needing

with needing("weave"):
    from otel_rollout_weave.exporter import WeaveSpanExporter

__all__ = ["WeaveSpanExporter"]
