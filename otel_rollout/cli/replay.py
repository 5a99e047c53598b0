"""Copy files of OTLP JSON Lines into a node directory, to deliver them again."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from otel_rollout.base.waits import waits
from otel_rollout.spool import files, layout
from otel_rollout.spool.private_files import open_private, read_beside

_logger = logging.getLogger("otel_rollout.forwarder")

_RUN: Final = re.compile(r"replay-run-[0-9a-f]{12}")
"""Run ids that :func:`as_node_directory` makes."""

Named: TypeAlias = tuple[str, Iterable[bytes]]
"""Name of a source, and its lines."""


def sources_of(paths: Sequence[Path]) -> Iterator[Named]:
    """Yield the lines of files, and of the segments in directories.

    Raises:
        ValueError: for a directory without segments, and for a device.
    """
    for path in files.files_of(paths):
        yield str(path), files.lines_of(path)


def is_replay(manifest: layout.Manifest) -> bool:
    """Return whether a node directory has copies for a replay, which has chosen its own targets."""
    return _RUN.fullmatch(manifest.run_id) is not None


@contextmanager
def as_node_directory(
    paths: Sequence[Path],
    spool_dir: Path,
    exporters: Sequence[str],
    limit: int = 0,
    sources: Iterable[Named] | None = None,
) -> Iterator[Path]:
    """Make a node directory with copies of files of OTLP JSON Lines.

    The directory counts as a run once it is complete. It is removed after the block, unless its spans are
    pending or rejected. After an exception it is always removed, since the original files stay.

    Args:
        paths: files, plain or compressed, or directories whose segments and archived segments are copied.
        spool_dir: the spool directory for the new directory.
        exporters: names of the exporters that will deliver the copies.
        limit: maximum bytes of the copies; 0 for half of the free space.
        sources: the lines to copy; by default all of the paths.

    Raises:
        OSError: a file cannot be read, or a copy cannot be written.
        ValueError: a path holds no lines, or more than the limit.
    """
    run = f"replay-{layout.new_run_id()}"
    node_dir = layout.node_directory(spool_dir, run, "")
    layout.create_private(node_dir, spool_dir)
    try:
        _copy_tokenizers(paths, node_dir)
        writer = layout.new_writer_id()
        room = limit or layout.default_limit(node_dir)
        for sequence, (name, lines) in enumerate(sources or sources_of(paths), start=1):
            copy = node_dir / layout.SegmentName(writer, sequence).file
            room -= (size := _copy_lines(name, lines, copy, room))
            if not size:
                copy.unlink()
        layout.write_manifest(node_dir, layout.Manifest(run, "replay", tuple(exporters)))
        yield node_dir
    except BaseException:
        _remove(node_dir.parent)  # else `status` would show it as the latest run
        raise
    left = [*layout.segments(node_dir), *node_dir.glob("rejected.*")]
    if not left:
        _remove(node_dir.parent)


def _remove(run: Path) -> None:
    """Remove a run, into which a thread of an interrupted delivery may still write for a moment."""
    deadline = time.monotonic() + waits().threads
    while True:
        try:
            return shutil.rmtree(run)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or time.monotonic() > deadline:
                raise
        time.sleep(waits().poll)


def _copy_tokenizers(paths: Sequence[Path], node_dir: Path) -> None:
    """Copy the tokenizers of the files' runs, which are near the files."""
    for path in paths:
        directories = [path.parent, path.parent.parent, *([] if path.is_file() else path.glob("**/"))]
        for found in {file for directory in directories for file in layout.tokenizer_files(directory)}:
            (node_dir / layout.TOKENIZERS).mkdir(mode=0o700, exist_ok=True)
            try:  # in a temporary directory the file may belong to another user
                content = read_beside(found)
            except OSError as error:
                _logger.warning("tokenizer %s is skipped: %s", found, error)
            else:
                layout.write_whole(layout.tokenizer_file(node_dir, found.stem), content)


def _copy_lines(source: str, lines: Iterable[bytes], target: Path, room: int) -> int:
    """Copy a source's lines, and end the last line; return the number of bytes written."""
    with open(target, "w+b", opener=open_private) as copy:
        for line in lines:
            if copy.tell() + len(line) > room:
                raise ValueError(
                    f"{source} does not fit: the copies of a replay may take at most "
                    "OTEL_ROLLOUT_SPOOL_LIMIT, by default half of the free space on the spool's disk"
                )
            copy.write(line)
        if copy.tell() and copy.seek(-1, os.SEEK_END) is not None and copy.read(1) != b"\n":
            copy.write(b"\n")
        return copy.seek(0, os.SEEK_END)
