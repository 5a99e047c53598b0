"""Export rollout traces to a Delta table.

The exporter is registered as ``delta`` in the entry-point group ``opentelemetry_traces_exporter``. So the
forwarder, and any other OpenTelemetry program (``OTEL_TRACES_EXPORTER=delta``), finds it. The columns
are those of :mod:`otel_rollout.table.schema`.
"""

from __future__ import annotations

from importlib.util import find_spec

from otel_rollout.exporting.base import needing

with needing("delta"):
    if find_spec("deltalake") is None:  # imported only where it is used: never by a training process
        raise ModuleNotFoundError("No module named 'deltalake'", name="deltalake")
    from otel_rollout_delta.exporter import DeltaSpanExporter

__all__ = ["DeltaSpanExporter"]
