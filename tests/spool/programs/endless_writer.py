"""Write and acknowledge lines until killed: ``endless_writer.py DIRECTORY``."""

import os
import sys
from pathlib import Path

from otel_rollout.record.recording.writer import SegmentWriter


def main(directory: str) -> None:
    """Write numbered lines, whole and in pieces; print each number afterwards."""
    writer = SegmentWriter(Path(directory), {}, segment_bytes=200_000, journal_bytes=1 << 16)
    number = 0
    while True:
        line = b"%d:" % number, b"z" * (number % 500), b"\n"
        while not writer.write(b"".join(line) if number % 2 else line):
            pass  # a busy machine: the journal was full for too long
        os.write(1, b"%d\n" % number)
        number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
