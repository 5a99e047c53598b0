"""Tell the trainer's process which trajectory each training row of the asynchronous worker comes from.

TRL's samples name their group and no more. So the worker appends a line per scored group to a private file of
the trainer, before it puts the group's rows into its queue, in the same order.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, Final

_VARIABLE: Final = "_OTEL_ROLLOUT_TRL_GROUPS"
"""Variable that tells the worker, a child process, the file's path."""
TrajectoryOfRow = tuple[str, int] | None
"""Id of a training row's trajectory, and the oldest version that made its tokens; None if not recorded."""


def publish(group_id: int, rows: list[TrajectoryOfRow]) -> None:
    """Append a scored group to the trainer's file, if there is one."""
    path = os.environ.get(_VARIABLE)
    if not path:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:  # the trainer has ended
        return
    try:
        os.write(descriptor, json.dumps([group_id, rows]).encode() + b"\n")
    finally:
        os.close(descriptor)


class Groups:
    """The groups that a worker has scored, read in the trainer's process."""

    def __init__(self) -> None:
        directory = tempfile.mkdtemp(prefix="otel-rollout-trl-")
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        path = Path(directory) / "groups.jsonl"
        path.touch(mode=0o600)
        os.environ[_VARIABLE] = str(path)
        self._file = path.open("rb")

    def new(self) -> list[tuple[int, list[TrajectoryOfRow]]]:
        """Return the groups that were scored since the last call."""
        found: list[tuple[int, list[TrajectoryOfRow]]] = []
        start = self._file.tell()
        for line in self._file.read().splitlines(keepends=True):
            if not line.endswith(b"\n"):  # half of it is written
                break
            start += len(line)
            group: Any = json.loads(line)
            found.append((group[0], group[1]))
        self._file.seek(start)
        return found
