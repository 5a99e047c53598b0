"""Share recorded lines: read, rewrite and decode each once for all exporters.

Exporters advance at their own pace. A bounded cache keeps lines, by their position in a segment, for the
exporters that are close behind. An exporter that is further behind reads the segment itself.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from otel_rollout.base.bounded import BoundedDict
from otel_rollout.otlp.json_line import TraceLine, UnreadableLineError
from otel_rollout.otlp.scan import StepKey, step_of
from otel_rollout.otlp.score_batch import is_batch
from otel_rollout.otlp.score_identity import is_by_identity, may_be_by_identity
from otel_rollout.spool.layout import SegmentName
from otel_rollout.spool.segments import recorded_lines

CACHE_BYTES: Final = 32 << 20
"""Bytes of recorded lines kept for exporters; lines take about three times as much memory."""
_LINE_BYTES: Final = 2048
"""Bytes counted per cached line in addition to its length, for the objects of its spans."""


@dataclass(eq=False)
class Line:
    """A recorded line, shared by the exporters of a forwarder.

    Attributes:
        segment: stem of the segment that holds the line.
        end: byte offset in the segment at which the next line begins.
        recorded: the line as it was recorded.
        rewrite: makes the exported line from the recorded one.
        is_sampled_out: whether tail sampling decided against the line's group.
    """

    segment: str
    end: int
    recorded: bytes
    rewrite: Callable[[bytes], TraceLine]
    is_sampled_out: bool = False
    _exported: TraceLine | None = field(default=None, init=False)

    @property
    def problem(self) -> str | None:
        """Why no exporter gets the line; None if exporters get it."""
        # The scores of a readable batch are lines of their own.
        return "the batch of scores is damaged" if is_batch(self.recorded) else None

    @cached_property
    def step(self) -> StepKey:
        """The step of the line's span."""
        return step_of(self.recorded)

    @cached_property
    def is_by_identity(self) -> bool:
        """Whether the line holds a score by identity."""
        if not may_be_by_identity(self.recorded):
            return False
        with suppress(UnreadableLineError):
            return any(is_by_identity(span.attributes) for span in self.exported.spans)
        return False

    @property
    def exported(self) -> TraceLine:
        """The line as exporters get it, rewritten at first use."""
        if self._exported is None:  # rewriting may wait; Python 3.11 computes a cached property under a lock
            self._exported = self.rewrite(self.recorded)
        return self._exported

    def forget(self) -> None:
        """Free the line as exporters get it; it is made again at its next use."""
        self._exported = None


class LineCache:
    """Caches the lines of a node directory for readers in several threads.

    Args:
        node_dir: holds the segments.
        rewrite: makes the exported line from a recorded line; by default lines are exported as recorded.
        max_bytes: maximum bytes of cached lines.
    """

    def __init__(
        self,
        node_dir: Path,
        rewrite: Callable[[bytes], TraceLine] = TraceLine,
        max_bytes: int = CACHE_BYTES,
    ) -> None:
        self._node_dir = node_dir
        self._rewrite = rewrite
        self._lock = threading.RLock()
        self._readers: list[LineReader] = []
        self._lines: BoundedDict[tuple[str, int], Line] = BoundedDict(max_bytes, _size_of)

    def reader(self) -> LineReader:
        """Return a new reader, for which the cache keeps lines."""
        reader = LineReader(self, self._node_dir)
        self._readers.append(reader)
        return reader

    def get(self, segment: str, start: int) -> Line | None:
        """Return the cached line that begins at byte ``start`` of a segment, or None."""
        return self._lines.get((segment, start))

    def add(self, start: int, recorded: bytes, end: int, reader: LineReader, segment: str) -> Line:
        """Return the line that a reader has read; cache it for readers behind."""
        line = Line(segment, end, recorded, self._rewrite)
        with self._lock:
            known = self._lines.get((segment, start))
            if known is not None:
                return known
            if any(other.awaits(segment, end) for other in self._readers if other is not reader):
                self._lines[segment, start] = line
        return line

    def release(self, segment: str, start: int) -> None:
        """Remove a line from the cache if every reader has passed it."""
        with self._lock:
            line = self._lines.get((segment, start))
            if line is not None and not any(r.awaits(segment, line.end) for r in self._readers):
                del self._lines[segment, start]


def _size_of(line: Line) -> int:
    return len(line.recorded) + _LINE_BYTES


class LineReader:
    """Reads segments for one exporter, through the cache.

    Attributes:
        is_waiting: whether the exporter waits for an unavailable target; meanwhile the cache keeps no lines
            for it.
    """

    def __init__(self, cache: LineCache, node_dir: Path) -> None:
        self.is_waiting = False
        self._cache = cache
        self._node_dir = node_dir
        self._positions: dict[str, int] = {}

    def awaits(self, segment: str, end: int) -> bool:
        """Return whether this reader has yet to pass byte ``end`` of a segment."""
        return not self.is_waiting and self._positions.get(segment, 0) < end

    def read(self, name: SegmentName, position: int, limit: int) -> Iterator[Line]:
        """Yield complete lines from byte ``position`` on.

        The lines have at most ``limit`` bytes together, except that a longer first line is yielded alone.
        """
        segment, start = name.stem, position
        unread: Iterator[tuple[bytes, int]] | None = None
        self._positions[segment] = position
        while True:
            line = self._cache.get(segment, position)
            if line is not None:
                unread = None
            else:
                if unread is None:
                    unread = recorded_lines(self._node_dir / name.file, position, sys.maxsize)
                found = next(unread, None)
                if found is None:
                    return
                line = self._cache.add(position, *found, self, segment)
            if position > start and line.end - start > limit:
                return
            yield line
            before, position = position, line.end
            self._positions[segment] = position
            self._cache.release(segment, before)
