"""Files of OTLP JSON Lines as they lie about: segments, archives, what was rejected, those of other tools."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from otel_rollout.spool import layout
from otel_rollout.spool.private_files import open_beside
from otel_rollout.spool.segments import MAX_LINE_BYTES

MAX_WINDOW_BYTES: Final = 128 << 20
"""Memory that decompressing may take: what our archives need, and what the zstd command allows by default."""
MAX_RATIO: Final = 1000
"""Bytes that one compressed byte may become, beyond ALWAYS_ALLOWED_BYTES. Contexts that every turn resends
stay below it; zeros do not."""
ALWAYS_ALLOWED_BYTES: Final = 64 << 20


def in_places(paths: Sequence[Path]) -> Iterator[Path]:
    """The files that are meant: those named, and the segments and archives in those that are directories.

    Raises:
        ValueError: for a directory that holds none, and for a device.
    """
    for path in paths:
        if path.is_dir():
            found = in_directory(path)
            if not found:
                raise ValueError(f"{path} holds no segments (files called <writer>.<number>.jsonl[.zst])")
            yield from found
        elif path.is_char_device() or path.is_block_device():  # which may have no end
            raise ValueError(f"{path} is a device, not a file")
        else:
            yield path


def in_directory(directory: Path) -> list[Path]:
    """The segments at or below a directory, archived ones too."""
    if directory.is_symlink():  # a person may name a link; links below it are not followed
        directory = directory.resolve()
    return sorted(path for path in directory.rglob("*") if _is_segment(path))


def _is_segment(path: Path) -> bool:
    return layout.SegmentName.parse(path.name.removesuffix(layout.COMPRESSED_SUFFIX)) is not None


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file, decompressed or unwrapped from the reasons of rejection.

    The last may have no newline; one that is longer than any span is comes in pieces.

    Raises:
        OSError: when it cannot be read.
        ForeignFileError: when it is called as in a spool, and may be somebody else's.
        ValueError: when it is damaged, or would become too large.
    """
    is_rejected = path.name.startswith(layout.DEAD_LETTER_PREFIX)
    with _opened(path) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            yield _rejected_line(path, number, line) if is_rejected else line


def _rejected_line(path: Path, number: int, entry: bytes) -> bytes:
    """The recorded line in an entry of a dead-letter file."""
    try:
        line = orjson.loads(entry)["line"]
        return bytes(line.encode()) + b"\n"
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ValueError(f'{path}, line {number}: is no rejected span, which is {{"line": "..."}}') from None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with open(path, "rb", opener=_opener_for(path)) as file:
        if path.suffix != layout.COMPRESSED_SUFFIX:
            yield file
            return
        import zstandard

        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        limit = max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * os.fstat(file.fileno()).st_size)
        try:
            with decompressor.stream_reader(file, read_across_frames=True) as plain:
                yield io.BufferedReader(_BoundedReader(plain, path, limit), 1 << 20)
        except zstandard.ZstdError as error:
            raise ValueError(f"{path} cannot be decompressed: {error}") from error


def _opener_for(path: Path) -> Callable[[str, int], int] | None:
    """What opens a file: with care where it is called as in a spool, which may be found, not named."""
    return open_beside if _is_segment(path) or path.name.startswith(layout.DEAD_LETTER_PREFIX) else None


class _BoundedReader(io.RawIOBase):
    """Reads what a file decompresses to, and raises ValueError where that is far more than it may be."""

    def __init__(self, plain: Any, path: Path, limit: int) -> None:
        self._plain = plain
        self._path = path
        self._limit = limit
        self._size = 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes."""
        count = int(self._plain.readinto(buffer))
        self._size += count
        if self._size > self._limit:
            raise ValueError(
                f"{self._path} becomes more than {self._limit} bytes, which no file of its size does"
            )
        return count
