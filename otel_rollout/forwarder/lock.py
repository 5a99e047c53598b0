"""Who forwards a node directory: whoever holds its lock.

The lock file says which variables its holder has for access to targets (credentials, certificates, proxies):
their names, and fingerprints of their values with a salt. A process that has more starts a successor, which
asks for the lock by a file of its own, and gets it when the batches under way are delivered.
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

from otel_rollout.spool.private_files import open_private

LOCK_FILE = "forwarder.lock"
SUCCESSOR_FILE = "forwarder.successor"
SUCCESSOR = "--succeed"
"""Argument of a forwarder that takes the lock over from the one that runs."""
_POLL_INTERVAL = 0.05
_ATTEMPTS, _ATTEMPT_INTERVAL = 100, 0.005
"""Attempts to get the lock while processes look at it, and seconds between them."""
_NAMES_BYTES = 1 << 20
"""Bytes read of a lock file."""


def fingerprints(access: Mapping[str, str], salt: str) -> dict[str, str]:
    """Return the names of variables with what tells their values apart, and not what they are."""
    return {
        name: hashlib.sha256(f"{salt} {value}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
        for name, value in access.items()
    }


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
        """Try to become the forwarder; False while another process is."""
        for _ in range(_ATTEMPTS):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self.is_held():
                    return False
                time.sleep(_ATTEMPT_INTERVAL)  # somebody was just looking whether it is held
            else:
                return True
        return False

    def is_held(self) -> bool:
        """Whether another process is the forwarder. Those who ask are not taken for one, by one another."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def succeed(self, timeout: float) -> bool:
        """Ask the forwarder for the lock, and wait for it."""
        os.close(open_private(self._path.parent / SUCCESSOR_FILE, os.O_WRONLY | os.O_CREAT))
        deadline = time.monotonic() + timeout
        while not self.win():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_INTERVAL)
        return True

    def begin(self, access: Mapping[str, str]) -> None:
        """As the lock's holder, write down which access to targets we have; who asked for the lock has it."""
        salt = os.urandom(8).hex()
        described = orjson.dumps({"salt": salt, "access": fingerprints(access, salt)})
        os.pwrite(self._descriptor, described, 0)
        os.ftruncate(self._descriptor, len(described))
        with contextlib.suppress(FileNotFoundError):
            (self._path.parent / SUCCESSOR_FILE).unlink()

    def lacks(self, access: Mapping[str, str]) -> bool:
        """Whether the lock's holder has fewer of such variables than these, and no other."""
        has, _ = self._described()
        return has is not None and has.keys() < access.keys()

    def differs(self, access: Mapping[str, str]) -> bool:
        """Whether the lock's holder has the same variables with other values."""
        has, salt = self._described()
        return has is not None and has.keys() == access.keys() and has != fingerprints(access, salt)

    def _described(self) -> tuple[dict[str, str] | None, str]:
        try:
            described = orjson.loads(os.pread(self._descriptor, _NAMES_BYTES, 0))
            return dict(described["access"]), str(described["salt"])
        except (ValueError, KeyError, TypeError):  # nobody has said, or half of it
            return None, ""

    def is_succeeded(self) -> bool:
        """Whether somebody asks for the lock."""
        return (self._path.parent / SUCCESSOR_FILE).exists()

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
