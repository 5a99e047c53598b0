"""Read the spans of segments, a line each, also those of batches of scores.

A batch is one line of a segment and counts as many spans as it has scores. A position inside the line stands
between two of these spans: ``n`` bytes after the line's begin, ``n`` spans are passed. So a cursor of bytes
also says which scores of a batch are done.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from otel_rollout.otlp.score_batch import batch_in
from otel_rollout.spool import segments
from otel_rollout.spool.private_files import open_private
from otel_rollout.spool.segments import MAX_LINE_BYTES, READ_BYTES


def recorded_lines(path: Path, position: int, limit: int) -> Iterator[tuple[bytes, int]]:
    """Yield the spans of a segment from ``position`` on, each as a line and with its end.

    The segment's lines are read as :func:`~otel_rollout.spool.segments.complete_lines` does. A batch that is
    damaged is yielded as it is.
    """
    begin, passed = place_of(path, position)
    for line, end in segments.complete_lines(path, begin, limit):
        batch = batch_in(line)
        if batch is None:
            yield line[passed:], end
        else:
            for number, span in enumerate(batch.lines(passed), passed + 1):
                yield span, end if number == len(batch) else begin + number
        begin, passed = end, 0


def place_of(path: Path, position: int) -> tuple[int, int]:
    """Return where the line begins that holds a position, and how many bytes of it precede the position."""
    if not position:
        return 0, 0
    try:
        descriptor = open_private(path, os.O_RDONLY)
    except FileNotFoundError:  # removed after use
        return position, 0
    try:
        end = position
        while end > max(0, position - MAX_LINE_BYTES):
            # Nearly always a cursor is between two lines, so one byte is read first.
            start = max(0, end - (1 if end == position else READ_BYTES))
            newline = os.pread(descriptor, end - start, start).rfind(b"\n")
            if newline >= 0:
                begin = start + newline + 1
                return begin, position - begin
            end = start
        return end, position - end
    finally:
        os.close(descriptor)
