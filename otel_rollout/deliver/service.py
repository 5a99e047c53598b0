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

from otel_rollout import spool
from otel_rollout.deliver import drain, files, segments
from otel_rollout.deliver.election import Election
from otel_rollout.deliver.forwarder import forward
from otel_rollout.deliver.report import Report
from otel_rollout.settings import Settings

LOOK_INTERVAL = 2.0
_logger = logging.getLogger("otel_rollout.deliver")


def forward_directory(node_dir: Path, configured: Settings) -> bool:
    """Forward a node directory until it is done; False when another forwarder is at it."""
    election = Election(node_dir)
    try:
        if not election.win():
            return False
        forward(node_dir, configured, election)
        return True
    finally:
        election.close()


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
            for node_dir in spool.node_directories(self._place):
                if not self._is_at(node_dir) and self._has_work(node_dir):
                    self._begin(node_dir)
            stop.wait(LOOK_INTERVAL)

    def finish(self, timeout: float) -> list[Report]:
        """Wait, at most so many seconds, until all is delivered that was recorded; the accounts."""
        deadline = time.monotonic() + timeout
        reports = self._reports()
        while any(_pending(report) for report in reports) and time.monotonic() < deadline:
            time.sleep(0.1)
            reports = self._reports()
        return reports

    def _reports(self) -> list[Report]:
        return [drain.report(n, self._settings_of(n)) for n in spool.node_directories(self._place)]

    def _is_at(self, node_dir: Path) -> bool:
        return node_dir in self._threads and self._threads[node_dir].is_alive()

    def _has_work(self, node_dir: Path) -> bool:
        if segments.living_writers(node_dir):
            return True
        return _pending(drain.report(node_dir, self._settings_of(node_dir)))

    def _begin(self, node_dir: Path) -> None:
        thread = threading.Thread(
            target=forward_directory, args=(node_dir, self._settings_of(node_dir)), daemon=True
        )
        self._threads[node_dir] = thread
        thread.start()


def _pending(report: Report) -> bool:
    return any(count.pending for count in report.exporters.values())


@contextmanager
def as_node_directory(paths: Sequence[Path], spool_dir: Path, exporters: Sequence[str]) -> Iterator[Path]:
    """A node directory that holds copies of files of OTLP JSON Lines, plain or compressed.

    It is removed afterwards, unless something in it is pending or was rejected.

    Args:
        paths: files, or directories whose segments and archives are meant.
        spool_dir: where to make it.
        exporters: who will deliver it.

    Raises:
        OSError: when a file cannot be read or the copy not be written.
        ValueError: for a path that holds no lines.
    """
    run = f"replay-{spool.new_run_id()}"
    node_dir = spool.node_directory(spool_dir, run, "")
    spool.create_private(node_dir, spool_dir)
    try:
        spool.write_manifest(node_dir, spool.Manifest(run, "replay", tuple(exporters)))
        _copy_tokenizers(paths, node_dir)
        writer = spool.new_writer_id()
        for sequence, path in enumerate(files.in_places(paths), start=1):
            _copy_lines(path, node_dir / spool.SegmentName(writer, sequence).file)
    except (OSError, ValueError):
        shutil.rmtree(node_dir.parent)  # else it would be the latest run, which `status` shows
        raise
    yield node_dir
    left = [*spool.segments(node_dir), *node_dir.glob("rejected.*")]
    if not left:
        shutil.rmtree(node_dir.parent)


def _copy_tokenizers(paths: Sequence[Path], node_dir: Path) -> None:
    """The tokenizers of the runs that files come from: beside them, below them, or beside their archive."""
    for path in paths:
        places = [path.parent, path.parent.parent, *([] if path.is_file() else path.glob("**/"))]
        for found in {file for place in places for file in spool.tokenizer_files(place)}:
            (node_dir / spool.TOKENIZERS).mkdir(mode=0o700, exist_ok=True)
            try:  # beside a file in a temporary directory anybody may have put something
                content = spool.read_owned(found, found.parent.parent)
            except OSError as error:
                _logger.warning("the tokenizer %s is passed over: %s", found, error)
            else:
                spool.write_whole(spool.tokenizer_file(node_dir, found.stem), content)


def _copy_lines(source: Path, target: Path) -> None:
    """Copy a file's lines, with an end to the last."""
    with open(target, "w+b", opener=spool.open_private) as copy:
        copy.writelines(files.lines_of(source))
        if copy.tell() and copy.seek(-1, os.SEEK_END) is not None and copy.read(1) != b"\n":
            copy.write(b"\n")
