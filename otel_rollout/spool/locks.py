"""Lock files, so that other processes see that the holder lives, and what the forwarder may access.

The holder of a node directory's lock is the directory's forwarder. The lock file records the holder's access
variables (credentials, certificates, proxies): their names, and salted fingerprints of their values. A
process with more access variables starts a successor. The successor creates a file to request the lock, and
gets the lock when the holder has delivered its current batches.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import orjson

from otel_rollout.base.waits import wait_until
from otel_rollout.spool.private_files import open_private

_ATTEMPTS, _ATTEMPT_INTERVAL = 100, 0.005
"""Attempts to get the lock while other processes test it, and seconds between attempts."""
LOCK_FILE = "forwarder.lock"
SUCCESSOR_FILE = "forwarder.successor"
SUCCESSOR = "--succeed"
"""Command-line argument of a forwarder that takes over the lock from its holder."""
_MAX_FILE_BYTES = 1 << 20
"""Maximum bytes read from a lock file."""


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
        """Return whether another process holds the lock; one that only tests it does not count."""
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


def fingerprints(access: Mapping[str, str], salt: str) -> dict[str, str]:
    """Return variables with salted fingerprints in place of their values."""
    return {
        name: hashlib.sha256(f"{salt} {value}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
        for name, value in access.items()
    }


class ForwarderLock(ProcessLock):
    """The forwarder's lock: at most one process forwards a node directory.

    Raises:
        OSError: the lock file cannot be opened.
        ForeignFileError: the directory or the file may belong to another user.
    """

    def __init__(self, node_dir: Path) -> None:
        super().__init__(node_dir / LOCK_FILE)

    def take_over(self, timeout: float) -> bool:
        """Request the lock from its holder; return False after ``timeout`` seconds."""
        os.close(open_private(self._path.parent / SUCCESSOR_FILE, os.O_WRONLY | os.O_CREAT))
        return wait_until(self.acquire, timeout)

    def publish_access(self, access: Mapping[str, str]) -> None:
        """Write fingerprints of the holder's access variables into the lock file; drop the request."""
        salt = os.urandom(8).hex()
        described = orjson.dumps({"salt": salt, "access": fingerprints(access, salt)})
        os.pwrite(self._descriptor, described, 0)
        os.ftruncate(self._descriptor, len(described))
        with contextlib.suppress(FileNotFoundError):
            (self._path.parent / SUCCESSOR_FILE).unlink()

    def lacks_access(self, access: Mapping[str, str]) -> bool:
        """Return whether ``access`` has all of the holder's variables, and more."""
        published, _ = self._published_access()
        return published is not None and published.keys() < access.keys()

    def has_other_access(self, access: Mapping[str, str]) -> bool:
        """Return whether the holder lacks a variable of ``access`` or has another value."""
        published, salt = self._published_access()
        if published is None:
            return False
        return any(published.get(name) != print_ for name, print_ in fingerprints(access, salt).items())

    def has_further_access(self, access: Mapping[str, str]) -> bool:
        """Return whether the holder has a variable that ``access`` lacks."""
        published, _ = self._published_access()
        return published is not None and not published.keys() <= access.keys()

    def _published_access(self) -> tuple[dict[str, str] | None, str]:
        try:
            described = orjson.loads(os.pread(self._descriptor, _MAX_FILE_BYTES, 0))
            return dict(described["access"]), str(described["salt"])
        except (ValueError, KeyError, TypeError):  # the file is empty, or partly written
            return None, ""

    def is_requested(self) -> bool:
        """Return whether a successor requests the lock."""
        return (self._path.parent / SUCCESSOR_FILE).exists()
