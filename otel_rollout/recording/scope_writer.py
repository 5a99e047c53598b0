"""Record spans of other libraries, counted by instrumentation scope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_rollout.recording.identity import NO_IDENTITY, Identity

if TYPE_CHECKING:
    from otel_rollout.recording.counters import Counters
    from otel_rollout.recording.flusher import Line
    from otel_rollout.recording.writer import SegmentWriter


class ScopeWriter:
    """Writes the spans of one instrumentation scope of another library.

    Our own spans go to the :class:`SegmentWriter` directly, so that counting costs them nothing.

    Args:
        writer: writes the spans.
        scope: name of the scope.

    Attributes:
        counters: counts of what this process did not record.
    """

    def __init__(self, writer: SegmentWriter, scope: str) -> None:
        self.counters: Counters = writer.counters
        self.started = writer.started
        self._write = writer.write
        self._scope = scope

    def write(self, body: Line, identity: Identity = NO_IDENTITY) -> bool:
        """Record and count a line, see :meth:`SegmentWriter.write`."""
        is_recorded = self._write(body, identity)
        if is_recorded:
            self.counters.recorded_by(self._scope)
        return is_recorded
