"""Complete the segments of dead processes; end their open trajectories as errors.

Ended trajectories are written to one more segment of the dead writer, so every exporter delivers them like
other lines.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NamedTuple

import orjson

from otel_rollout.base import semconv
from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.otlp.json_line import set_resource_text, spans_of, spans_of_json
from otel_rollout.otlp.scan import end_time_of, ids_of
from otel_rollout.spool import journal, layout, segments
from otel_rollout.spool.layout import SegmentName
from otel_rollout.spool.private_files import open_private
from otel_rollout.spool.root_table import read_open


class Writers(NamedTuple):
    """The state of a node directory's writers."""

    any_alive: bool
    dead_are_complete: bool
    """Whether segments hold everything that dead writers recorded."""


class CrashRecovery:
    """Recovers the records of dead writers in a node directory.

    Args:
        node_dir: the node directory, whose lock the caller holds.
    """

    def __init__(self, node_dir: Path) -> None:
        self._node_dir = node_dir
        self._alive_ns: dict[str, int] = {}
        self.recovered: set[str] = set()
        """Dead writers whose segments are complete."""
        self._reported: set[str] = set()

    def run(self) -> Writers:
        """Recover every dead writer that is not recovered yet."""
        any_alive, dead_are_complete = False, True
        for writer in self.not_recovered():
            now_ns = time.time_ns()
            try:
                if segments.is_dead(self._node_dir, writer):
                    segments.repair(self._node_dir, writer)
                    end_open_trajectories(self._node_dir, writer, self._alive_ns.get(writer, 0))
                    segments.discard_buffers(self._node_dir, writer)
                    self.recovered.add(writer)
                else:
                    any_alive = True
                    self._alive_ns[writer] = now_ns
            except Exception as error:  # noqa: BLE001 - for example a full disk; the next call tries again
                self._report(writer, error)
                dead_are_complete = False
        return Writers(any_alive, dead_are_complete)

    def not_recovered(self) -> set[str]:
        """Return the writers that live, that died since the last :meth:`run`, or whose recovery failed."""
        return segments.writers(self._node_dir) - self.recovered

    def _report(self, writer: str, error: Exception) -> None:
        if writer not in self._reported:
            unforeseen = not isinstance(error, OSError)
            logger.warning(
                "cannot complete the segments of writer %s: %s", writer, error, exc_info=unforeseen
            )
        self._reported.add(writer)


def end_open_trajectories(node_dir: Path, writer: str, alive_ns: int = 0) -> None:
    """End the open trajectories of a dead writer at its last sign of life.

    A sign of life is the end of a recorded span, a note in the journal, or a moment at which the writer held
    its locks. A process that hangs may record and note nothing. Call this after the writer's segments are
    repaired. Idempotent.

    Args:
        node_dir: the node directory.
        writer: the writer.
        alive_ns: when it was last seen alive, Unix time in ns; 0 if nobody has seen it.
    """
    name = SegmentName(writer, layout.CLOSING_SEQUENCE)
    if name in layout.segments(node_dir):
        return
    table = node_dir / (writer + layout.OPEN_SUFFIX)
    open_roots = {ids_of(line): line for line in read_open(table) if _is_readable(line)}
    if not open_roots:
        return
    last_ends = _last_ends(node_dir, writer, open_roots)
    alive_ns = max(alive_ns, _noted_life(node_dir, writer))
    lines = [
        _ended(line, max(last_ends.get(trace_id, 0), alive_ns), name.stem)
        for (trace_id, _), line in open_roots.items()
    ]
    if lines:
        fresh = node_dir / (name.stem + ".new")
        with open(fresh, "wb", opener=open_private) as file:
            file.writelines(lines)
        fresh.rename(node_dir / name.file)


def _noted_life(node_dir: Path, writer: str) -> int:
    """Return when a writer has last noted that it lives; 0 if it has not, or if the note is damaged."""
    state = journal.read_state(layout.journal_of(node_dir, writer))
    return state.alive_ns if state is not None and state.alive_ns <= time.time_ns() else 0


def _last_ends(node_dir: Path, writer: str, open_roots: dict[tuple[bytes, bytes], bytes]) -> dict[bytes, int]:
    """Return trace id → end time of the trace's last recorded span, in ns.

    Ended roots are removed from ``open_roots``: a process may die after it has recorded a trajectory's end,
    and before it has cleared the root's slot.
    """
    traces = {trace_id for trace_id, _ in open_roots}
    last: dict[bytes, int] = {}
    for name in layout.segments(node_dir):
        if name.writer != writer:
            continue
        for line, _ in segments.complete_lines(node_dir / name.file, 0, sys.maxsize):
            ids = ids_of(line)
            end = end_time_of(line)
            if ids[0] in traces and end is not None:
                open_roots.pop(ids, None)
                last[ids[0]] = max(last.get(ids[0], 0), end)
    return last


def _is_readable(line: bytes) -> bool:
    """Return whether a line of the root table is intact."""
    try:
        (root,) = spans_of(_ended(line, 0, ""))
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    return ids_of(line) == (root.trace_id.encode(), root.span_id.encode())


def _ended(line: bytes, end_ns: int, segment: str) -> bytes:
    """Return a line of the root table with an end time and its new segment's name."""
    data = orjson.loads(line)
    set_resource_text(data, semconv.SEGMENT_ID, segment)
    (span,) = spans_of_json(data)
    span.set_end(max(end_ns, span.start_ns))
    return orjson.dumps(data) + b"\n"
