"""Die by SIGKILL in a write: ``die_in_write.py DIRECTORY POINT PIECES``.

POINT is ``before publishing``, ``while publishing`` or ``in write(2)``. PIECES says how lines are given to
the writer: ``whole`` or ``in pieces``. The process dies when it writes or flushes its fiftieth line.
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from otel_rollout.record.recording import flusher
from otel_rollout.record.recording.writer import SegmentWriter
from otel_rollout.spool import journal

LINES = 50


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingWriter:
    """A writer, and functions that replace the journal's and the flusher's."""

    def __init__(self, directory: Path) -> None:
        self.writer = SegmentWriter(directory, {}, segment_bytes=1 << 20, journal_bytes=1 << 16)
        self.acknowledged = 0
        self._publish, self._pack, self._write = journal.Journal.publish, journal._published.pack, os.write

    def publish(self, written: int, lines: int = 0) -> None:
        """Die before publishing: the line is copied, its length is not published."""
        of_writer = self.writer._journal
        if of_writer.recorded + lines == LINES:
            self.writer._flusher.hurry()
            time.sleep(0.2)  # the flusher moves all published bytes
            die()
        self._publish(of_writer, written, lines)

    def pack(self, written: int, recorded: int) -> bytes:
        """Die while publishing: half of the slot that is not valid yet is written."""
        if recorded == LINES:
            of_writer = self.writer._journal
            at = journal._SLOTS[1 - of_writer._active]
            of_writer._map[at : at + 8] = b"?" * 8
            die()
        return self._pack(written, recorded)

    def write(self, descriptor: int, data: bytes) -> int:
        """Die in write(2): half of the data is in the file."""
        if self.acknowledged >= LINES - 1:
            self._write(descriptor, bytes(data)[: len(data) // 2])
            die()
        return self._write(descriptor, data)

    def arm(self, point: str) -> None:
        """Replace the function of the point to die at."""
        if point == "before publishing":
            patch.object(journal.Journal, "publish", lambda _, *args: self.publish(*args)).start()
        elif point == "while publishing":
            patch.object(journal, "_published", SimpleNamespace(pack=self.pack)).start()
        elif point == "in write(2)":
            patch.object(flusher, "os", SimpleNamespace(**{**vars(os), "write": self.write})).start()


def main(directory: str, point: str, pieces: str) -> None:
    """Write lines until the process dies."""
    dying = DyingWriter(Path(directory))
    dying.arm(point)
    for number in range(LINES):
        line = b"%d:" % number, b"z" * 100, b"\n"
        dying.writer.write(line if pieces == "in pieces" else b"".join(line))
        dying.acknowledged = number + 1
    dying.writer.flush(30)


if __name__ == "__main__":
    main(*sys.argv[1:])
