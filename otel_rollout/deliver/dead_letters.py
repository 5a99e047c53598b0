"""Write the dead-letter file of an exporter: spans that its target rejects."""

from __future__ import annotations

from pathlib import Path

import orjson

from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.deliver.lines import Line
from otel_rollout.spool import layout, segments

_MAX_LOGGED = 10
"""Maximum rejected spans that are logged per exporter; the dead-letter file has the reason of every one."""


def rejected_file(node_dir: Path, exporter: str) -> Path:
    """Return the path of an exporter's dead-letter file."""
    return node_dir / f"{layout.DEAD_LETTER_PREFIX}{exporter}.jsonl"


class DeadLetters:
    """Appends rejected lines to an exporter's dead-letter file.

    Args:
        node_dir: holds the file.
        exporter: the exporter's name.
    """

    def __init__(self, node_dir: Path, exporter: str) -> None:
        self._path = rejected_file(node_dir, exporter)
        self._exporter = exporter
        self._rejections = 0

    def add(self, line: Line, reason: str) -> None:
        """Append a recorded line with the reason of its rejection.

        Raises:
            OSError: when the file cannot be written.
        """
        entry = {
            "reason": reason,
            "segment": line.segment,
            "end": line.end,
            "line": line.recorded.decode("utf-8", "replace").rstrip("\n"),
        }
        segments.append_line(self._path, orjson.dumps(entry) + b"\n")
        self._rejections += 1
        if self._rejections <= _MAX_LOGGED:
            source = layout.source_of(self._path.parent, line.segment)
            logger.error("%s rejects a span of %s: %s", self._exporter, source, reason)
        if self._rejections == _MAX_LOGGED:
            logger.error("further spans that %s rejects are written to %s only", self._exporter, self._path)
