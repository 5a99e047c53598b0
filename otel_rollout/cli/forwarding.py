"""Forwarding by hand: whole spools, for as long as asked; and files of lines, from wherever they come."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from otel_rollout.account import node_report
from otel_rollout.account.report import Report
from otel_rollout.base.errors import warn_once
from otel_rollout.forwarder.forwarder import forward
from otel_rollout.forwarder.lock import ForwarderLock
from otel_rollout.launch import drain
from otel_rollout.settings import Settings
from otel_rollout.spool import files, layout, segments
from otel_rollout.spool.private_files import open_private, read_beside

LOOK_INTERVAL = 2.0
WAIT_INTERVAL = 0.2
"""Seconds between looks at what another forwarder has delivered."""
_logger = logging.getLogger("otel_rollout.forwarder")


def forward_directory(node_dir: Path, configured: Settings) -> bool:
    """Forward a node directory until it is done; False when another forwarder is at it.

    Raises:
        OSError: when its lock cannot be had, because it is another user's, say.
    """
    election = ForwarderLock(node_dir)
    try:
        if not election.acquire():
            return False
        forward(node_dir, configured, election)
        return True
    finally:
        election.close()


def forward_or_wait(node_dir: Path, configured: Settings, on_wait: Callable[[], object]) -> None:
    """Have a node directory forwarded: by us, or by the forwarder that is at work there.

    While another one is at work, wait until it has delivered what was recorded when we came. If it ends
    before that, or has other exporters than ours, go on with the rest.

    Args:
        node_dir: what is forwarded.
        configured: settings to forward it with.
        on_wait: called once if there is another forwarder.

    Raises:
        OSError: when the lock cannot be had.
    """
    target = node_report.report(node_dir, configured).recorded
    is_waiting = False
    while not forward_directory(node_dir, configured):
        if not is_waiting:
            is_waiting = True
            on_wait()
        if drain.is_settled(node_dir, configured, target):
            return
        time.sleep(WAIT_INTERVAL)


class Service:
    """Forwards every run that lies, or comes to lie, in a place, all at once.

    Args:
        place: a spool, a run's or a node directory; need not exist yet.
        settings_of: the settings to forward a node directory with.
    """

    def __init__(self, place: Path, settings_of: Callable[[Path], Settings]) -> None:
        self._place = place
        self._settings_of = settings_of
        self._threads: dict[Path, threading.Thread] = {}

    def run(self, stop: threading.Event) -> None:
        """Forward until told to stop. What is pending then stays where it is."""
        while not stop.is_set():
            for node_dir in layout.node_directories(self._place):
                if not self._is_at(node_dir) and self._has_work(node_dir) and not stop.is_set():
                    self._begin(node_dir)
            stop.wait(LOOK_INTERVAL)

    def finish(self, timeout: float) -> list[Report]:
        """Wait, at most so many seconds, until what is being forwarded is delivered; the accounts."""
        deadline = time.monotonic() + timeout
        while any(map(self._is_busy, self._threads)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [self._report(node_dir) for node_dir in layout.node_directories(self._place)]

    def _report(self, node_dir: Path) -> Report:
        return node_report.report(node_dir, self._settings_of(node_dir))

    def _is_busy(self, node_dir: Path) -> bool:
        return self._is_at(node_dir) and _pending(self._report(node_dir))

    def _is_at(self, node_dir: Path) -> bool:
        return node_dir in self._threads and self._threads[node_dir].is_alive()

    def _has_work(self, node_dir: Path) -> bool:
        if segments.living_writers(node_dir):
            return True
        return _pending(self._report(node_dir))

    def _begin(self, node_dir: Path) -> None:
        thread = threading.Thread(
            target=_forward_if_possible, args=(node_dir, self._settings_of(node_dir)), daemon=True
        )
        self._threads[node_dir] = thread
        thread.start()


def _forward_if_possible(node_dir: Path, configured: Settings) -> None:
    try:
        forward_directory(node_dir, configured)
    except OSError as error:  # the others go on
        warn_once(f"cannot forward {node_dir}: {error}", logger=_logger)  # a service tries every few seconds


def _pending(report: Report) -> bool:
    return any(count.pending for count in report.exporters.values())


@contextmanager
def as_node_directory(
    paths: Sequence[Path], spool_dir: Path, exporters: Sequence[str], limit: int = 0
) -> Iterator[Path]:
    """A node directory that holds copies of files of OTLP JSON Lines, plain or compressed.

    No command takes it for a run before it is complete. It is removed afterwards, unless something in it is
    pending or was rejected; after an exception in any case, since the files themselves stay.

    Args:
        paths: files, or directories whose segments and archives are meant.
        spool_dir: where to make it.
        exporters: who will deliver it.
        limit: bytes the copies may take; 0: half of what is free.

    Raises:
        OSError: when a file cannot be read or the copy not be written.
        ValueError: for a path that holds no lines, or more than the limit.
    """
    run = f"replay-{layout.new_run_id()}"
    node_dir = layout.node_directory(spool_dir, run, "")
    layout.create_private(node_dir, spool_dir)
    try:
        _copy_tokenizers(paths, node_dir)
        writer = layout.new_writer_id()
        room = limit or layout.default_limit(node_dir)
        for sequence, path in enumerate(files.files_of(paths), start=1):
            room -= _copy_lines(path, node_dir / layout.SegmentName(writer, sequence).file, room)
        layout.write_manifest(node_dir, layout.Manifest(run, "replay", tuple(exporters)))
        yield node_dir
    except BaseException:
        shutil.rmtree(node_dir.parent)  # else it would be the latest run, which `status` shows
        raise
    left = [*layout.segments(node_dir), *node_dir.glob("rejected.*")]
    if not left:
        shutil.rmtree(node_dir.parent)


def _copy_tokenizers(paths: Sequence[Path], node_dir: Path) -> None:
    """The tokenizers of the runs that files come from: beside them, below them, or beside their archive."""
    for path in paths:
        places = [path.parent, path.parent.parent, *([] if path.is_file() else path.glob("**/"))]
        for found in {file for place in places for file in layout.tokenizer_files(place)}:
            (node_dir / layout.TOKENIZERS).mkdir(mode=0o700, exist_ok=True)
            try:  # beside a file in a temporary directory anybody may have put something
                content = read_beside(found)
            except OSError as error:
                _logger.warning("the tokenizer %s is passed over: %s", found, error)
            else:
                layout.write_whole(layout.tokenizer_file(node_dir, found.stem), content)


def _copy_lines(source: Path, target: Path, room: int) -> int:
    """Copy a file's lines, with an end to the last; the bytes that takes, at most ``room``."""
    with open(target, "w+b", opener=open_private) as copy:
        for line in files.lines_of(source):
            if copy.tell() + len(line) > room:
                raise ValueError(
                    f"{source} does not fit: copies for a replay may take OTEL_ROLLOUT_SPOOL_LIMIT, "
                    "or half of what is free on the spool's disk"
                )
            copy.write(line)
        if copy.tell() and copy.seek(-1, os.SEEK_END) is not None and copy.read(1) != b"\n":
            copy.write(b"\n")
        return copy.seek(0, os.SEEK_END)
