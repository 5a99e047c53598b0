"""The exporter ``spool``: what is recorded stays in the spool, for somebody else to read there.

A Collector that tails segments, for one. The forwarder still completes what killed processes left.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult


class KeptInSpool(SpanExporter):
    """Sends nothing; a span that is in a segment is where it is wanted."""

    reads_spool = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Nothing to do."""
        return SpanExportResult.SUCCESS

    def export_lines(self, lines: Sequence[bytes]) -> SpanExportResult:
        """Nothing to do."""
        return SpanExportResult.SUCCESS

    def destination(self, project: str) -> str:
        """Return where the spans stay."""
        return "the spool, for another program to read"

    def check(self) -> None:
        """Nothing to reach; the spool is checked by itself."""
