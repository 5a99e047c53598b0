"""Complete what dead processes recorded; end their open trajectories as errors.

The lines of ended trajectories go into one more segment of the dead writer. So every exporter delivers them
as it delivers the rest.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from otel_rollout.otlp.reader import spans_of
from otel_rollout.otlp.scan import end_time_of, ids_of
from otel_rollout.spool import layout, segments
from otel_rollout.spool.layout import SegmentName
from otel_rollout.spool.private_files import open_private
from otel_rollout.spool.root_table import read_open

_logger = logging.getLogger("otel_rollout.forwarder")


class Writers(NamedTuple):
    """The state of the writers of a node directory."""

    any_alive: bool
    dead_are_complete: bool
    """Whether everything is in segments that dead writers recorded."""


class CrashRecovery:
    """Recovers what dead writers left in a node directory.

    Args:
        node_dir: the node directory, whose lock the caller holds.
    """

    def __init__(self, node_dir: Path) -> None:
        self._node_dir = node_dir
        self._recovered: set[str] = set()
        self._reported: set[str] = set()

    def run(self) -> Writers:
        """Recover what those writers left that died since the last call."""
        any_alive, dead_are_complete = False, True
        for writer in segments.writers(self._node_dir) - self._recovered:
            try:
                if segments.is_dead(self._node_dir, writer):
                    segments.repair(self._node_dir, writer)
                    end_open_trajectories(self._node_dir, writer)
                    segments.discard_buffers(self._node_dir, writer)
                    self._recovered.add(writer)
                else:
                    any_alive = True
            except Exception as error:  # noqa: BLE001 - a full disk, say; it is tried again
                self._report(writer, error)
                dead_are_complete = False
        return Writers(any_alive, dead_are_complete)

    def _report(self, writer: str, error: Exception) -> None:
        if writer not in self._reported:
            unforeseen = not isinstance(error, OSError)
            _logger.warning("cannot complete what %s recorded: %s", writer, error, exc_info=unforeseen)
        self._reported.add(writer)


def end_open_trajectories(node_dir: Path, writer: str) -> None:
    """End the open trajectories of a dead writer.

    A trajectory ends when the last span ended that the writer recorded of it. To be called after the writer's
    segments are repaired. Idempotent.
    """
    name = SegmentName(writer, layout.CLOSING_SEQUENCE)
    if name in layout.segments(node_dir):
        return
    table = node_dir / (writer + layout.OPEN_SUFFIX)
    open_roots = {ids_of(line): line for line in read_open(table) if _is_readable(line)}
    if not open_roots:
        return
    last_ends = _last_ends(node_dir, writer, open_roots)
    lines = [
        _ended(line, last_ends.get(trace_id, 0), name.stem) for (trace_id, _), line in open_roots.items()
    ]
    if lines:
        fresh = node_dir / (name.stem + ".new")
        with open(fresh, "wb", opener=open_private) as file:
            file.writelines(lines)
        fresh.rename(node_dir / name.file)


def _last_ends(node_dir: Path, writer: str, open_roots: dict[tuple[bytes, bytes], bytes]) -> dict[bytes, int]:
    """Return trace id → end of the trace's last recorded span.

    Roots that did end are removed from ``open_roots``: a process can die after it has recorded the end of a
    trajectory and before it has cleared the root's slot.
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
    """Return whether a line of the root table can be ended; a damaged one cannot."""
    try:
        (root,) = spans_of(_ended(line, 0, ""))
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    return ids_of(line) == (b"%032x" % root.context.trace_id, b"%016x" % root.context.span_id)


def _ended(line: bytes, end_ns: int, segment: str) -> bytes:
    """Give a line of the root table an end time, and the name of its new segment."""
    data: dict[str, Any] = orjson.loads(line)
    (of_resource,) = data["resourceSpans"]
    of_resource["resource"]["attributes"][0]["value"] = {"stringValue": segment}
    (span,) = of_resource["scopeSpans"][0]["spans"]
    span["endTimeUnixNano"] = str(max(end_ns, int(span["startTimeUnixNano"])))
    return orjson.dumps(data) + b"\n"
