"""A file whose lock shows other processes that its holder lives."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from otel_rollout.spool.private_files import open_private

_ATTEMPTS, _ATTEMPT_INTERVAL = 100, 0.005
"""Attempts to get the lock while other processes test it, and seconds between attempts."""


class ProcessLock:
    """A lock that at most one process holds, until its end.

    Args:
        path: the lock file, which is created unless it exists.

    Raises:
        OSError: the lock file cannot be opened.
        ForeignFileError: the directory or the file may belong to another user.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_private(path, os.O_RDWR | os.O_CREAT)

    def acquire(self) -> bool:
        """Try to get the lock; return False while another process holds it."""
        for _ in range(_ATTEMPTS):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self.is_held():
                    return False
                time.sleep(_ATTEMPT_INTERVAL)  # another process was testing the lock
            else:
                return True
        return False

    def is_held(self) -> bool:
        """Return whether another process holds the lock, rather than testing it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def is_current(self) -> bool:
        """Return whether the directory still holds the lock file that was opened."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self._descriptor))

    def release(self) -> None:
        """Let another process get the lock."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock file, and so release the lock."""
        os.close(self._descriptor)
