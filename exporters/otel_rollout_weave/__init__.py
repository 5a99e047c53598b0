"""W&B Weave as a destination for rollout traces: an ordinary OpenTelemetry ``SpanExporter``.

Registered under the name ``weave`` in the entry-point group ``opentelemetry_traces_exporter``, so the
forwarder, and any other OpenTelemetry program (``OTEL_TRACES_EXPORTER=weave``), finds it by that name. It
speaks the trace server's own protocol; neither ``weave`` nor ``wandb`` is imported.
"""

from __future__ import annotations

try:
    from otel_rollout_weave.exporter import WeaveSpanExporter
except ModuleNotFoundError as error:
    if (error.name or "").startswith("otel_rollout"):
        raise
    raise ModuleNotFoundError(
        f"The Weave exporter needs the package {error.name!r}: pip install 'otel-rollout[weave]'",
        name=error.name,
    ) from error

__all__ = ["WeaveSpanExporter"]
