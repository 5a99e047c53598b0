"""Read the next lines that one exporter gets, up to a full batch."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from otel_rollout.account.ledger import Ledger
from otel_rollout.forwarder.engine_joins import EngineJoins
from otel_rollout.forwarder.identity_scores import IdentityScores
from otel_rollout.forwarder.lines import Line, LineReader
from otel_rollout.otlp.scan import trace_id_of
from otel_rollout.spool import layout
from otel_rollout.spool.layout import SegmentName

_logger = logging.getLogger("otel_rollout.forwarder")


class BatchReader:
    """Reads batches of lines from the segments of a node directory.

    Args:
        node_dir: holds the segments.
        lines: reads lines through the forwarder's cache.
        scores: holds scores by identity; None if the exporter gets them as spans.
        joins: decides where the spans of engines belong; None to export them as recorded.
        is_tail_sampled: whether tail sampling decides which traces are exported.
    """

    def __init__(
        self,
        node_dir: Path,
        lines: LineReader,
        scores: IdentityScores | None,
        joins: EngineJoins | None,
        is_tail_sampled: bool,
    ) -> None:
        self._node_dir = node_dir
        self._lines = lines
        self._scores = scores
        self._joins = joins
        self._is_tail_sampled = is_tail_sampled
        self._unreadable: set[SegmentName] = set()

    def is_held(self, line: Line) -> bool:
        """Return whether a line waits for its trajectory, once the cursor has passed it."""
        return self._scores is not None and line.is_by_identity and not line.is_sampled_out

    def waiting_bytes(self, positions: Mapping[str, int]) -> int:
        """Return the number of bytes in segments behind positions."""
        total = 0
        for name in layout.segments(self._node_dir):
            with contextlib.suppress(FileNotFoundError):
                size = (self._node_dir / name.file).stat().st_size
                total += max(0, size - positions.get(name.stem, 0))
        return total

    def read(
        self,
        ledger: Ledger,
        positions: Mapping[str, int],
        max_lines: int,
        max_bytes: int,
        ends: Mapping[str, int] | None = None,
        held: int = 0,
    ) -> list[Line]:
        """Return lines of one or more segments; none while they wait for others.

        Args:
            ledger: has the decisions about lines.
            positions: segment → where its next line begins.
            max_lines: maximum number of lines.
            max_bytes: maximum bytes of lines; a larger line is returned alone.
            ends: segment → end of its last line to return; None for all lines of all segments.
            held: lines before ``positions`` that are about to be held.
        """
        batch: list[Line] = []
        size = 0
        room = self._scores.room - held if self._scores is not None else sys.maxsize
        for name in layout.segments(self._node_dir):
            end = sys.maxsize if ends is None else ends.get(name.stem, 0)
            position = positions.get(name.stem, 0)
            try:
                for line in self._lines.read(name, position, max_bytes - size) if position < end else ():
                    # Later lines of the segment wait too.
                    if line.end > end or not self._is_decided(line, ledger):
                        break
                    if self.is_held(line):
                        if room <= 0:
                            break
                        room -= 1
                    size += len(line.recorded)
                    batch.append(line)
                    if len(batch) >= max_lines:
                        return batch
            except OSError as error:  # for example a bad block; other segments are still delivered
                self._log_unreadable(name, error)
            if size >= max_bytes:
                break
        return batch

    def _is_decided(self, line: Line, ledger: Ledger) -> bool:
        """Set where a line belongs, and whether it is sampled out; return False while that is undecided."""
        if line.placed is None and self._joins is not None:
            resolved = self._joins.resolve(line.segment, line.end, line.recorded, ledger)
            if resolved is None:
                return False
            if resolved.is_left_out:  # set first: another exporter may share the line
                line.is_sampled_out = True
            line.placed = resolved.line
        trace_id = trace_id_of(line.placed or line.recorded) if self._is_tail_sampled else None
        if trace_id is None:
            return True
        is_kept = ledger.is_kept(trace_id)
        if is_kept is None:  # another exporter, which shares the line, may know already
            return False
        line.is_sampled_out |= not is_kept
        return True

    def _log_unreadable(self, name: SegmentName, error: OSError) -> None:
        if name not in self._unreadable:
            _logger.error("cannot read %s: %s; the file stays where it is", name.file, error)
        self._unreadable.add(name)
