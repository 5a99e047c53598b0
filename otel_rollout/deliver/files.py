"""Files of OTLP JSON Lines as they lie about: segments, archives, what was rejected, those of other tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import orjson

from otel_rollout import spool
from otel_rollout.deliver.delivery import REJECTED
from otel_rollout.deliver.segments import MAX_LINE_BYTES


def in_places(paths: Sequence[Path]) -> Iterator[Path]:
    """The files that are meant: those named, and the segments and archives in those that are directories.

    Raises:
        ValueError: for a directory that holds none.
    """
    for path in paths:
        if path.is_dir():
            found = in_directory(path)
            if not found:
                raise ValueError(f"{path} holds no segments (files called <writer>.<number>.jsonl[.zst])")
            yield from found
        else:
            yield path


def in_directory(directory: Path) -> list[Path]:
    """The segments at or below a directory, archived ones too."""
    return sorted(path for path in directory.rglob("*") if _is_segment(path))


def _is_segment(path: Path) -> bool:
    return spool.SegmentName.parse(path.name.removesuffix(spool.COMPRESSED_SUFFIX)) is not None


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file, decompressed or unwrapped from the reasons of rejection.

    The last may have no newline; one that is longer than any span is comes in pieces.

    Raises:
        OSError: when it cannot be read.
        ValueError: when it is damaged.
    """
    with _opened(path) as file:
        while line := file.readline(MAX_LINE_BYTES):
            yield orjson.loads(line)["line"].encode() + b"\n" if path.name.startswith(REJECTED) else line


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with path.open("rb") as file:
        if path.suffix != spool.COMPRESSED_SUFFIX:
            yield file
            return
        import io

        import zstandard

        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        try:
            with decompressor.stream_reader(file, read_across_frames=True) as plain:
                yield io.BufferedReader(plain, 1 << 20)
        except zstandard.ZstdError as error:
            raise ValueError(f"{path} cannot be decompressed: {error}") from error
