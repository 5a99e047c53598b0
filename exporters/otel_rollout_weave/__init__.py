"""W&B Weave as a destination for rollout traces.

Registered under the name ``weave`` in the entry-point group ``opentelemetry_traces_exporter``. So the
forwarder, and any other OpenTelemetry program (``OTEL_TRACES_EXPORTER=weave``), finds it by that name. It
speaks the trace server's own protocol; neither ``weave`` nor ``wandb`` is imported.
"""

from __future__ import annotations

from otel_rollout.exporting.base import needing

with needing("weave"):
    from otel_rollout_weave.exporter import WeaveSpanExporter

__all__ = ["WeaveSpanExporter"]
