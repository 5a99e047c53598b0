"""Create, lock and fill the segment files of one writer, one after the other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from otel_rollout.base import semconv
from otel_rollout.otlp import writer
from otel_rollout.spool import layout
from otel_rollout.spool.private_files import open_private

_MAX_SERVICE_NAME_CHARS: Final = 256
"""Maximum characters of the service's name in ``SegmentFile.short_head``."""


class PreparedSegment(NamedTuple):
    """A segment file that exists and is locked, but is still empty."""

    name: layout.SegmentName
    descriptor: int


class SegmentFile:
    """The segment file that a writer fills at present.

    Args:
        node_dir: the directory of its files.
        writer_id: the writer's id.
        resource: attributes of the entity that records.
        full_bytes: size at which the file is full.
        is_resource_open: whether each line continues the attributes of its resource.

    Attributes:
        head: beginning of each line: the resource, with the segment's id.
        short_head: the head with the service's name alone, for lines that have to be short.
        descriptor: descriptor of the open file; -1 before the first segment and after the last.
        length: bytes in the file.
    """

    def __init__(
        self,
        node_dir: Path,
        writer_id: str,
        resource: Mapping[str, writer.AttributeInput],
        full_bytes: int,
        is_resource_open: bool = False,
    ) -> None:
        self.head = self.short_head = b""
        self.descriptor = -1
        self.length = 0
        self._node_dir = node_dir
        self._writer_id = writer_id
        self._resource = resource
        self._full_bytes = full_bytes
        self._encode_head = writer.open_resource_head if is_resource_open else writer.resource_head
        self._sequence = 0

    @property
    def is_full(self) -> bool:
        """Whether the file has the size at which the next one is created."""
        return self.length >= self._full_bytes

    def prepare_next(self) -> PreparedSegment:
        """Create the file that follows this one.

        Raises:
            OSError: when the file cannot be created; then no file is left.
        """
        name = layout.SegmentName(self._writer_id, self._sequence + 1)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        prepared = PreparedSegment(name, open_private(self._hidden(name), flags))
        try:
            # Lock the file before it has its name: a visible segment without a lock has no living writer.
            fcntl.flock(prepared.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(self._hidden(name), self._node_dir / name.file)
        except OSError:
            self.discard(prepared)
            raise
        return prepared

    def discard(self, prepared: PreparedSegment) -> None:
        """Remove a prepared file that is not needed."""
        for path in (self._hidden(prepared.name), self._node_dir / prepared.name.file):
            path.unlink(missing_ok=True)
        os.close(prepared.descriptor)

    def switch_to(self, prepared: PreparedSegment) -> int:
        """Switch to a prepared file.

        Returns:
            The descriptor of the previous file, for the caller to close.
        """
        before = self.descriptor
        segment_id, service = prepared.name.stem, str(self._resource.get(semconv.SERVICE_NAME, ""))
        self.head = self._encode_head({semconv.SEGMENT_ID: segment_id, **self._resource})
        self.short_head = writer.resource_head(
            {semconv.SEGMENT_ID: segment_id, semconv.SERVICE_NAME: service[:_MAX_SERVICE_NAME_CHARS]}
        )
        self.descriptor, self._sequence, self.length = prepared.descriptor, prepared.name.sequence, 0
        return before

    def write(self, line: bytes) -> None:
        """Write a whole line.

        Raises:
            OSError: when the disk is full or fails; a part of the line may have been written.
        """
        written = 0
        while written < len(line):
            written += os.write(self.descriptor, memoryview(line)[written:])
        self.length += written

    def truncate(self, length: int) -> None:
        """Cut the file to ``length`` bytes, which works on a full disk, too."""
        os.ftruncate(self.descriptor, length)
        self.length = length

    def is_removed(self) -> bool:
        """Return whether somebody has removed the file."""
        return os.fstat(self.descriptor).st_nlink == 0

    def close(self) -> None:
        """Close the file, which frees its lock."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _hidden(self, name: layout.SegmentName) -> Path:
        return self._node_dir / (name.stem + ".new")
