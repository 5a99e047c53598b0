"""Trajectories whose process died before they did: ended by us, as errors.

Their lines go into one more segment of the dead writer, so that every exporter delivers them as it delivers
the rest.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import orjson

from otel_rollout.otlp.reader import spans_of
from otel_rollout.spool import layout, segments
from otel_rollout.spool.layout import SegmentName
from otel_rollout.spool.private_files import open_private
from otel_rollout.spool.root_table import read_open

_IDS = re.compile(rb'"traceId":"([0-9a-f]{32})","spanId":"([0-9a-f]{16})"')
_END = re.compile(rb'"endTimeUnixNano":"(\d{1,19})"')


def close_unfinished(node_dir: Path, writer: str) -> None:
    """End what a dead writer left open, at the time of its last sign of life.

    To be called after the writer's segments were healed. Idempotent.
    """
    name = SegmentName(writer, layout.CLOSING_SEQUENCE)
    if name in layout.segments(node_dir):
        return
    table = node_dir / (writer + layout.OPEN_SUFFIX)
    open_roots = {_ids(line): line for line in read_open(table) if _is_readable(line)}
    if not open_roots:
        return
    last_seen = _last_ends(node_dir, writer, open_roots)
    lines = [
        _ended(line, last_seen.get(trace_id, 0), name.stem) for (trace_id, _), line in open_roots.items()
    ]
    if lines:
        fresh = node_dir / (name.stem + ".new")
        with open(fresh, "wb", opener=open_private) as file:
            file.writelines(lines)
        fresh.rename(node_dir / name.file)


def _last_ends(node_dir: Path, writer: str, open_roots: dict[tuple[bytes, bytes], bytes]) -> dict[bytes, int]:
    """When the last span of each open trajectory ended here; roots that did end after all are taken out.

    A process can die between recording the end of a trajectory and taking it out of the table.
    """
    traces = {trace_id for trace_id, _ in open_roots}
    last: dict[bytes, int] = {}
    for name in layout.segments(node_dir):
        if name.writer != writer:
            continue
        for line, _ in segments.complete_lines(node_dir / name.file, 0, sys.maxsize):
            ids = _ids(line)
            ended = _END.search(line)
            if ids[0] in traces and ended is not None:
                open_roots.pop(ids, None)
                last[ids[0]] = max(last.get(ids[0], 0), int(ended[1]))
    return last


def _is_readable(line: bytes) -> bool:
    """Whether a line of the table can be ended; what was damaged counts among the unfinished spans."""
    try:
        (root,) = spans_of(_ended(line, 0, ""))
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    return _ids(line) == (b"%032x" % root.context.trace_id, b"%016x" % root.context.span_id)


def _ids(line: bytes) -> tuple[bytes, bytes]:
    found = _IDS.search(line)
    return (found[1], found[2]) if found else (b"", b"")


def _ended(line: bytes, end_ns: int, segment: str) -> bytes:
    """A line of the table with an end time, naming the segment it now lies in."""
    data: dict[str, Any] = orjson.loads(line)
    (of_resource,) = data["resourceSpans"]
    of_resource["resource"]["attributes"][0]["value"] = {"stringValue": segment}
    (span,) = of_resource["scopeSpans"][0]["spans"]
    span["endTimeUnixNano"] = str(max(end_ns, int(span["startTimeUnixNano"])))
    return orjson.dumps(data) + b"\n"
