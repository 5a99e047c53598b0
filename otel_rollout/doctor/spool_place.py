"""Tell whether a spool can be read, and whether this user's programs could record in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from otel_rollout.spool import layout

_DEPTH: Final = 2
"""Levels of directories below a spool: runs, and their node directories."""


def problem_of(spool: Path) -> str | None:
    """Return why nothing can be recorded in a spool, or read there; None if all is well.

    A spool that does not exist is well if it can be made.
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
    """Return why a spool that does not exist cannot be made."""
    parent = next(path for path in spool.absolute().parents if path.exists())
    if parent.is_dir() and _may_write(parent):
        return None
    return f"{spool} does not exist, and cannot be made in {parent}: nothing is recorded there"


def _may_write(directory: Path) -> bool:
    """Return whether this user may make files; a probe may see the directory through a read-only mount."""
    if os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        return True
    return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
