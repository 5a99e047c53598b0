"""On which file system a directory lies, and whether the spool can be there."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import tempfile
from pathlib import Path
from typing import Final

from otel_rollout.doctor.report import Finding, Verdict
from otel_rollout.spool import layout

CHECK: Final = "spool"
LITTLE_SPACE: Final = 1 << 30
"""Bytes below which a warning is due: a run takes its spans' size."""
NO_SPACE: Final = 64 << 20
"""Bytes that a handful of processes need for their journals (4 MiB each) and little else."""

_SHARED: Final = re.compile(
    r"nfs\d?|lustre|fuse(\..*)?|fuseblk|cifs|smb\w*|gpfs|beegfs\w*|ceph|9p|afs|glusterfs|panfs|pvfs2|orangefs|"
    r"virtiofs|wekafs|quobyte|acfs|ocfs2|gfs2"
)
_MOUNTS: Final = Path("/proc/self/mountinfo")


def spool_place(directory: Path, shown: str, mounts: Path = _MOUNTS) -> Finding:
    """Check a spool directory that exists, or the place where it will be created. Leaves nothing behind.

    Args:
        directory: the spool directory.
        shown: what to call it.
        mounts: the system's table of mounts.
    """
    directory = directory.absolute()
    advice = "Set OTEL_ROLLOUT_SPOOL_DIR to a directory of your own on a local disk."
    try:
        existing = _nearest_existing(directory)
        problem = _unusable(directory, existing)
        if problem is None:
            _try_out(existing)
            free = layout.free_bytes(existing)
    except OSError as error:
        problem = f"cannot be used: {error.strerror or type(error).__name__}"
    if problem is not None:
        return Finding(CHECK, Verdict.FAIL, f"{shown} {problem}", advice)

    kind = file_system_of(existing.resolve(), mounts)
    state = "exists" if existing == directory else "can be created"
    room = "unknown space" if free is None else _shown_size(free)
    found = f"{shown} {state}: {room} free on {kind or 'an unknown file system'}"
    if free is not None and free < NO_SPACE:
        return Finding(CHECK, Verdict.FAIL, found, "Make room: spans that do not fit are dropped. " + advice)
    if kind is not None and _SHARED.fullmatch(kind):
        why = (
            "It is not a local disk: recording waits for it, and locks and shared memory may not hold there. "
        )
        return Finding(CHECK, Verdict.WARN, found, why + advice)
    if free is not None and free < LITTLE_SPACE:
        return Finding(CHECK, Verdict.WARN, found, "Make room: spans that do not fit are dropped.")
    if kind in ("tmpfs", "ramfs"):
        found += ", which is memory"
    return Finding(CHECK, Verdict.OK, found)


def file_system_of(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """The type of the file system a resolved path lies on; None where the system does not tell."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return None
    best: tuple[int, str] | None = None
    for line in lines:
        fields, _, described = line.partition(" - ")
        parts = fields.split()
        if len(parts) < 5 or not described:
            continue
        point = Path(_unescaped(parts[4]))
        # Of several on one point the last one counts: it hides the others.
        if (point == path or point in path.parents) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), described.split()[0])
    return best[1] if best else None


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _nearest_existing(directory: Path) -> Path:
    place = directory
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    return place


def _unusable(directory: Path, existing: Path) -> str | None:
    if not existing.is_dir():
        return (
            "is no directory"
            if existing == directory
            else "cannot be created: a parent of it is no directory"
        )
    if existing == directory:
        for owner in (directory.lstat().st_uid, directory.stat().st_uid):  # of a link, and what it leads to
            if owner not in (os.geteuid(), 0):  # an administrator may provide it
                return f"belongs to user id {owner}, not to {os.geteuid()}"
        if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
            return "is not writable"
    elif not os.access(existing, os.W_OK | os.X_OK):
        return f"cannot be created: its parent is not writable for user id {os.geteuid()}"
    return None


def _try_out(directory: Path) -> None:
    """Do what recording does: lock a file, and write through memory.

    Raises:
        OSError: when that is not possible here.
    """
    with tempfile.TemporaryFile(dir=directory) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(file.fileno(), 0, mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as memory:
            memory[:5] = b"spool"


def _shown_size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
