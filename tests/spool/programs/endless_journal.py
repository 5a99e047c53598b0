"""Append to a journal until killed: ``endless_journal.py FILE``."""

import sys
from pathlib import Path

from otel_rollout.spool.journal import Journal


def main(path: str) -> None:
    """Append lines of ten bytes, and print ``ready`` after the first."""
    journal = Journal(Path(path), 1 << 20)
    journal.started[0] = 7
    journal.append(b"", b"x" * 10)
    print("ready", flush=True)
    while True:
        journal.append(b"", b"x" * 10)
        journal.flushed = journal.written


if __name__ == "__main__":
    main(*sys.argv[1:])
