"""Check the spool directory: its file system, its owner, its free space, and who can read it."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.filesize import decimal

from otel_rollout.doctor.diagnosis import DoctorCheck, DoctorFinding
from otel_rollout.spool import layout

CHECK: Final = DoctorCheck("spool")
LITTLE_SPACE: Final = 1 << 30
"""Free bytes below which the check warns. A run needs the size of its undelivered spans."""
NO_SPACE: Final = 64 << 20
"""Free bytes below which the check fails. Journals take 4 MiB per process."""

_SHARED: Final = re.compile(
    r"nfs\d?|lustre|fuse(\..*)?|fuseblk|cifs|smb\w*|gpfs|beegfs\w*|ceph|9p|afs|glusterfs|panfs|pvfs2|orangefs|"
    r"virtiofs|wekafs|quobyte|acfs|ocfs2|gfs2"
)
"""Types of network and other shared file systems."""
_MOUNTS: Final = Path("/proc/self/mountinfo")
_DEPTH: Final = 2
"""Levels of directories below a spool: runs, and their node directories."""


def check_spool_directory(directory: Path, shown: str, mounts: Path = _MOUNTS) -> DoctorFinding:
    """Check a spool directory, or the nearest existing parent of a missing one.

    The check leaves no file behind.

    Args:
        directory: the spool directory.
        shown: name of the directory in the finding.
        mounts: the system's table of mounts.
    """
    directory = directory.absolute()
    advice = "Set OTEL_ROLLOUT_SPOOL_DIR to a directory of your own on a local disk."
    try:
        existing = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
        if problem := problem_of(directory):
            return CHECK.fail(problem, advice)
        _try_recording(existing)
        free = layout.free_bytes(existing)
    except OSError as error:
        return CHECK.fail(f"{shown} cannot be used: {error.strerror or type(error).__name__}", advice)

    type_ = file_system_of(existing.resolve(), mounts)
    state = "exists" if existing == directory else "can be created"
    space = "unknown space" if free is None else decimal(free)
    found = f"{shown} {state}: {space} free on {type_ or 'an unknown file system'}"
    make_room = "Free disk space: spans that do not fit are dropped."
    if free is not None and free < NO_SPACE:
        return CHECK.fail(found, f"{make_room} {advice}")
    if type_ is not None and _SHARED.fullmatch(type_):
        why = "This is not a local disk: recording waits for it, and locks and mmap may not work on it."
        return CHECK.warn(found, f"{why} {advice}")
    if free is not None and free < LITTLE_SPACE:
        return CHECK.warn(found, make_room)
    if type_ in ("tmpfs", "ramfs"):
        found += ", which is memory"
    return CHECK.ok(found)


def file_system_of(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Return the type of a resolved path's file system; None if unknown."""
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
        # Of several mounts on one directory, the last hides the others.
        if (point == path or point in path.parents) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), described.split()[0])
    return best[1] if best else None


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _try_recording(directory: Path) -> None:
    """Lock a temporary file and write to it through memory, as recording does.

    Raises:
        OSError: the file system does not support locks, allocation or mapped files.
    """
    with tempfile.TemporaryFile(dir=directory) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(file.fileno(), 0, mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as memory:
            memory[:5] = b"spool"


def problem_of(spool: Path) -> str | None:
    """Return why nothing can be recorded in a spool, or read there; None without a problem.

    A spool that does not exist is no problem if it can be made.
    """
    if problem := layout.problem_of(spool):
        return problem
    if not os.path.lexists(spool):
        return _problem_of_missing(spool)
    me = os.geteuid()
    return (
        None if _may_write(spool) else f"{spool} is not writable for user id {me}, who records nothing there"
    )


def unreadable_directories(directory: Path, depth: int = _DEPTH) -> Iterator[str]:
    """Yield a sentence for each of this user's directories in a spool that cannot be read."""
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        try:
            state = entry.stat(follow_symlinks=False)
            if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid():
                continue
            os.listdir(entry.path)
            if not os.access(entry.path, os.X_OK, effective_ids=True):
                raise PermissionError(0, "Permission denied")
            if depth > 1:
                yield from unreadable_directories(Path(entry.path), depth - 1)
        except FileNotFoundError:  # removed just now
            continue
        except OSError as error:
            yield f"{entry.path} cannot be read: {error.strerror}"


def _problem_of_missing(spool: Path) -> str | None:
    """Return why a spool that does not exist cannot be made; None if it can."""
    parent = next(path for path in spool.absolute().parents if path.exists())
    if parent.is_dir() and _may_write(parent):
        return None
    return f"{spool} does not exist, and cannot be made in {parent}: nothing is recorded there"


def _may_write(directory: Path) -> bool:
    """Return whether this user may make files; a probe may see the directory through a read-only mount."""
    may_write = os.access(directory, os.W_OK | os.X_OK, effective_ids=True)
    return may_write or bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
