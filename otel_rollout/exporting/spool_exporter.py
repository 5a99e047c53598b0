"""Leave spans in the spool for another program: the exporter ``spool``.

The program can be a Collector that tails segments. The forwarder still adds the missing spans of killed
processes.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult


class KeptInSpool(SpanExporter):
    """An exporter that sends nothing: a span in a segment is at its destination."""

    reads_spool = True

    def export(self, spans: Sequence[object]) -> SpanExportResult:
        """Succeed without doing anything."""
        return SpanExportResult.SUCCESS

    def export_lines(self, lines: Sequence[bytes]) -> SpanExportResult:
        """Succeed without doing anything."""
        return SpanExportResult.SUCCESS

    def destination(self, project: str) -> str:
        """Return where the spans stay."""
        return "the spool, for another program to read"

    def check(self) -> None:
        """Succeed: there is no target. The doctor checks the spool separately."""
