"""Open files of the spool so that nobody can lead us to another user's files.

A spool may lie in a temporary directory that everybody can write to. A directory in it may belong to another
user. So the functions here first open and check the directory. They open the file relative to the directory,
and check the open file: it must be a regular file of the expected owner, with one name. They follow no links
and wait for no pipes.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from otel_rollout.base.errors import warn_once

_FILE_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_NOT_A_FILE: Final = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""Errors of ``open(2)`` for a link, a directory, and a pipe without a reader."""
_FIRST_DESCRIPTOR: Final = 3
"""The first descriptor after those of the standard streams."""


class ForeignFileError(PermissionError):
    """Raised for a file or directory that may be another user's, before any use of it."""


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open or create a file in a directory that only this user can write to.

    This function is an ``opener`` for :func:`open`.

    Raises:
        OSError: when the file cannot be opened.
        ForeignFileError: when others can write to the directory, or the file may be another user's.
    """
    return _open(path, flags, private=True)


def open_beside(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that has the same owner as its directory; an ``opener`` for reading.

    Use this function for a directory that a person has named: it may be a colleague's.

    Raises:
        OSError: when the file cannot be opened.
        ForeignFileError: when file and directory may have different owners.
    """
    return _open(path, flags, private=False)


def touch(path: Path) -> None:
    """Set the time of a private file, which is created unless it exists. Never raises.

    Such a file only makes another process act sooner.
    """
    with suppress(OSError), open(path, "ab", opener=open_private) as file:
        os.utime(file.fileno())


def read_beside(path: Path) -> bytes:
    """Read a file that has the same owner as its directory."""
    with open(path, "rb", opener=open_beside) as file:
        return file.read()


def check_private(path: Path, state: os.stat_result) -> None:
    """Check that a directory is this user's, and that nobody else can write to it.

    Raises:
        ForeignFileError: when it is no directory, is another user's, or is writable by others.
    """
    if not stat.S_ISDIR(state.st_mode):
        raise ForeignFileError(f"{path} is {_described_type(state)}, not a directory")
    if state.st_uid != os.geteuid():
        raise ForeignFileError(f"{path} belongs to user id {state.st_uid}, not to {os.geteuid()}")
    if state.st_mode & _WRITABLE_BY_OTHERS:
        raise ForeignFileError(f"{path} is writable by other users; `chmod go-w {path}` changes that")


def check_absent_or_own(path: Path) -> None:
    """Check a file of a private directory, before a library opens it by path.

    Raises:
        OSError: when the directory cannot be opened.
        ForeignFileError: when others can write to the directory, or the file may be another user's.
    """
    directory = _opened_directory(path, private=True)
    try:
        state = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    finally:
        os.close(directory)
    _check_file(path, state, os.geteuid())


def is_own(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a regular file of this user.

    Log any other entry once.
    """
    try:
        state = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    problem = _problem(state, os.geteuid())
    if problem:
        log_left_alone(f"{entry.path} {problem}")
    return not problem


@contextmanager
def standard_streams_taken() -> Iterator[None]:
    """Keep files opened in the block from getting the descriptor of a closed stream.

    Without this, the output that a library prints would go into our file.
    """
    taken: list[int] = []
    try:
        while not taken or taken[-1] < _FIRST_DESCRIPTOR:
            taken.append(os.open("/", _DIRECTORY_FLAGS))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)


def log_left_alone(problem: str) -> None:
    """Log once that something in a spool is left alone.

    Forwarders check it repeatedly.
    """
    warn_once(f"{problem}; it is left alone")


def _open(path: str | os.PathLike[str], flags: int, *, private: bool) -> int:
    directory = _opened_directory(path, private)
    name = os.path.basename(path)
    try:
        owner = os.geteuid() if private else os.fstat(directory).st_uid
        # Truncate only after the check: the file may be another user's.
        safe_flags = (flags & ~os.O_TRUNC) | _FILE_FLAGS
        with standard_streams_taken():
            descriptor = os.open(name, safe_flags, 0o600, dir_fd=directory)
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            _check_file(path, os.stat(name, dir_fd=directory, follow_symlinks=False), owner)
        if error.errno is not None:
            error.filename = os.fspath(path)
        raise
    finally:
        os.close(directory)
    try:
        _check_file(path, os.fstat(descriptor), owner)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _opened_directory(path: str | os.PathLike[str], private: bool) -> int:
    name = os.path.dirname(path) or os.curdir
    try:
        directory = os.open(name, _DIRECTORY_FLAGS)
    except NotADirectoryError:
        raise ForeignFileError(f"{name} is a link or a file, not a directory") from None
    try:
        if private:
            check_private(Path(name), os.fstat(directory))
    except BaseException:
        os.close(directory)
        raise
    return directory


def _check_file(path: str | os.PathLike[str], state: os.stat_result, owner: int) -> None:
    problem = _problem(state, owner)
    if problem:
        raise ForeignFileError(f"{os.fspath(path)} {problem}")


def _problem(state: os.stat_result, owner: int) -> str:
    """Return why a file may be another user's; empty for a file of the expected owner."""
    if not stat.S_ISREG(state.st_mode):
        return f"is {_described_type(state)}, not a file"
    if state.st_uid != owner:
        return f"belongs to user id {state.st_uid}, not to {owner}"
    return "has further names (hard links), so it may be another file" if state.st_nlink > 1 else ""


def _described_type(state: os.stat_result) -> str:
    mode = state.st_mode
    types = ((stat.S_ISLNK, "a link"), (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"))
    return next((type_ for is_type, type_ in types if is_type(mode)), "something else")


def reserved(path: Path, size: int) -> mmap.mmap:
    """Create and map a file with reserved space.

    Raises:
        OSError: when the file exists, or its space cannot be reserved.
    """
    descriptor = open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        # Reserve the space now: a full disk would later mean SIGBUS in the training process.
        os.posix_fallocate(descriptor, 0, size)
        with standard_streams_taken():  # the map duplicates the descriptor
            return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
