"""Who forwards a node directory: whoever holds its lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from otel_rollout.private_files import open_private

LOCK_FILE = "forwarder.lock"


class Election:
    """The forwarder's lock: at most one process forwards a directory.

    Raises:
        OSError: when the lock file cannot be opened.
        ForeignFileError: when the directory or the file may be somebody else's.
    """

    def __init__(self, node_dir: Path) -> None:
        self._path = node_dir / LOCK_FILE
        self._descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT)

    def win(self) -> bool:
        """Try to become the forwarder."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def stands(self) -> bool:
        """Whether the lock is still that of the directory: somebody may have removed it, and made it anew."""
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        held = os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)

    def resign(self) -> None:
        """Let another process become the forwarder."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the lock file, and with it of the lock."""
        os.close(self._descriptor)
