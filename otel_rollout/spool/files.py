"""Read files of OTLP JSON Lines: segments, archives, dead letters, and others; and the running roots."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from otel_rollout.otlp.json_line import UnreadableLineError, as_recorded, spans_of
from otel_rollout.otlp.span import Span
from otel_rollout.spool import layout, segments
from otel_rollout.spool.private_files import open_beside
from otel_rollout.spool.root_table import read_open
from otel_rollout.spool.segments import MAX_LINE_BYTES

_logger = logging.getLogger(__name__)

MAX_WINDOW_LOG: Final = 27
"""Maximum decompression window, 128 MiB, as a power of two. Our archives need that much; it is also zstd's
default limit."""
MAX_RATIO: Final = 1000
"""Maximum ratio of decompressed to compressed bytes, above ``ALWAYS_ALLOWED_BYTES``. Conversations whose
turns resend their context stay below this ratio; a file of zeros does not."""
ALWAYS_ALLOWED_BYTES: Final = 64 << 20
"""Decompressed bytes that are allowed for any compressed file, whatever the ratio."""


def files_of(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the paths that are files, and the segments below the paths that are directories.

    Raises:
        ValueError: for a directory without segments, and for a device.
    """
    for path in paths:
        if path.is_dir():
            found = segments_below(path)
            if not found:
                raise ValueError(f"{path} holds no segments (files called <writer>.<number>.jsonl[.zst])")
            yield from found
        elif path.is_char_device() or path.is_block_device():  # a device may have no end
            raise ValueError(f"{path} is a device, not a file")
        else:
            yield path


def segments_below(directory: Path) -> list[Path]:
    """Return the segments in and below a directory, archived ones included."""
    if directory.is_symlink():  # follow a link that a person names, but no links below it
        directory = directory.resolve()
    return sorted(path for path in directory.rglob("*") if _is_segment(path))


def is_named_like_ours(path: Path) -> bool:
    """Return whether a file has the name of a segment or of a dead-letter file."""
    return _is_segment(path) or path.name.startswith(layout.DEAD_LETTER_PREFIX)


def _is_segment(path: Path) -> bool:
    return layout.SegmentName.parse(path.name.removesuffix(layout.COMPRESSED_SUFFIX)) is not None


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the recorded lines of a file, also of a compressed or dead-letter file.

    The last line may have no newline. A line of more than MAX_LINE_BYTES comes in pieces. Another program's
    line comes in the form of our lines.

    Raises:
        OSError: when the file cannot be read.
        ForeignFileError: when the file is named like a file of a spool, and may be another user's.
        ValueError: when the file is damaged, or its decompressed content is too large.
    """
    is_rejected = path.name.startswith(layout.DEAD_LETTER_PREFIX)
    with _opened(path) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            yield as_recorded(_rejected_line(path, number, line) if is_rejected else line)


def _rejected_line(path: Path, number: int, entry: bytes) -> bytes:
    """Return the recorded line in an entry of a dead-letter file."""
    try:
        line = orjson.loads(entry)["line"]
        return bytes(line.encode()) + b"\n"
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ValueError(f'{path}, line {number}: is not of the form {{"line": "..."}}') from None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    # The opener checks the owner.
    with open(path, "rb", opener=open_beside if is_named_like_ours(path) else None) as file:
        if path.suffix != layout.COMPRESSED_SUFFIX:
            yield file
            return
        from otel_rollout.spool import zstd  # here: a spool's readers rarely meet archives

        limit = max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * os.fstat(file.fileno()).st_size)
        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG}
        try:
            with zstd.ZstdFile(file, "r", options=options) as plain:
                bounded = BoundedReader(plain, path, limit)
                yield io.BufferedReader(bounded, 1 << 20)
            if bounded.is_cut_off:
                _logger.warning("%s is cut off: its end is missing, and only what precedes it is read", path)
        except zstd.ZstdError as error:
            raise ValueError(f"{path} cannot be decompressed: {error}") from error


class BoundedReader(io.RawIOBase):
    """Reads decompressed bytes; raises ValueError after more than ``limit`` bytes.

    Attributes:
        is_cut_off: whether the file ended inside a frame.
    """

    def __init__(self, plain: Any, path: Path, limit: int) -> None:
        self._plain = plain
        self._path = path
        self._limit = limit
        self._size = 0
        self.is_cut_off = False

    def readable(self) -> bool:
        """Return True: bytes can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes."""
        try:
            count = int(self._plain.readinto1(buffer))  # readinto() would lose what precedes an error
        except EOFError:
            self.is_cut_off = True
            return 0
        self._size += count
        if self._size > self._limit:
            raise ValueError(
                f"{self._path} decompresses to more than {self._limit} bytes, too many for a file of its size"
            )
        return count


def running_roots(node_dir: Path) -> list[Span]:
    """Return the open roots of the processes that record into a node directory."""
    roots = []
    for writer in layout.journals(node_dir):
        table = node_dir / (writer + layout.OPEN_SUFFIX)
        if not table.exists() or segments.is_dead(node_dir, writer):  # most writers of a spool ended long ago
            continue
        for line in read_open(table):
            try:
                roots += spans_of(line)
            except UnreadableLineError:
                continue  # the slot is being written
    return roots
