"""Find the runs of a command and the settings to deliver them; copy files into a run for a replay."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import typer

from otel_rollout import settings_reader
from otel_rollout.account import node_report
from otel_rollout.account.report import Report
from otel_rollout.base.errors import forwarder_logger as logger
from otel_rollout.base.setting_parsers import listed
from otel_rollout.base.waits import waits
from otel_rollout.cli.page_output import say
from otel_rollout.settings import Settings
from otel_rollout.spool import files, layout
from otel_rollout.spool.private_files import open_private, read_beside

_RUN: Final = re.compile(r"replay-run-[0-9a-f]{12}")
"""Run ids that :func:`as_node_directory` makes."""


def node_directories(directory: Path) -> list[Path]:
    """Return the node directories in a spool, run or node directory, the newest last.

    Raises:
        typer.Exit: there is no node directory, or the directory cannot be read.
    """
    require_readable(directory)
    found = layout.node_directories(directory)
    if not found:
        say(
            f"Nothing was recorded in {directory}. If the run has another spool directory, name it with "
            "--spool or OTEL_ROLLOUT_SPOOL_DIR."
        )
        raise typer.Exit(1)
    return found


def require_readable(directory: Path) -> None:
    """End the command if a spool, run or node directory exists and cannot be read.

    Raises:
        typer.Exit: the directory cannot be read.
    """
    if problem := layout.problem_of(directory):
        say(problem)
        raise typer.Exit(2)


def settings_of_run(node_dir: Path, configured: Settings, to: str | None = None) -> Settings:
    """Return settings with a run's project, and with its exporters or those of ``to``.

    A replay is delivered to its own exporters only: ``to`` selects some of them, perhaps none.
    """
    manifest = layout.read_manifest(node_dir)
    names: Iterable[str] = manifest.exporters if manifest else configured.exporters
    if manifest:
        configured = dataclasses.replace(configured, project_name=manifest.project_name)
    if to:
        chosen = listed(to)
        names = [name for name in names if name in chosen] if manifest and is_replay(manifest) else chosen
    return _with_exporters(configured, names)


def settings_of_copies(names: Iterable[str]) -> Settings:
    """Return settings with which every line of a file goes to the named exporters."""
    everything = {"OTEL_ROLLOUT_KEEP": "", "OTEL_ROLLOUT_OUTCOME_KEEP": ""}  # no archive, no tail sampling
    configured, _ = settings_reader.from_environment({**os.environ, **everything})
    return _with_exporters(configured, names)


def _with_exporters(configured: Settings, names: Iterable[str]) -> Settings:
    """Return ``configured`` with the options of the named exporters only."""
    exporters = {name: configured.exporters.get(name, {}) for name in names}
    return dataclasses.replace(configured, exporters=exporters)


def report_of_run(node_dir: Path, configured: Settings) -> Report:
    """Return the delivery report of a node directory for its run's exporters."""
    return node_report.report(node_dir, settings_of_run(node_dir, configured))


# --- copies of files of OTLP JSON Lines in a node directory, to deliver them again --------------------------


Named: TypeAlias = tuple[str, Iterable[bytes]]
"""Name of a source, and its lines."""


def sources_of(paths: Sequence[Path]) -> Iterator[Named]:
    """Yield the name and the lines of each file, and of each segment in a directory.

    Raises:
        ValueError: for a directory without segments, and for a device.
    """
    for path in files.files_of(paths):
        yield str(path), files.lines_of(path)


def is_replay(manifest: layout.Manifest) -> bool:
    """Return whether a manifest is that of a replay, which has its own targets."""
    return _RUN.fullmatch(manifest.run_id) is not None


def reason(error: Exception, named: str = "") -> str:
    """Return why a file cannot be read or written, without the operating system's number.

    Args:
        error: what was raised.
        named: the file that the sentence around it names.
    """
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename in (None, named) else f"{error.filename}: {error.strerror}"


@contextmanager
def as_node_directory(
    paths: Sequence[Path], configured: Settings, sources: Iterable[Named] | None = None
) -> Iterator[Path]:
    """Make a node directory with copies of files of OTLP JSON Lines.

    The directory counts as a run once it is complete. It is removed after the block, unless its spans are
    pending or rejected. After an exception it is always removed, since the original files stay.

    Args:
        paths: files, plain or compressed, or directories whose segments and archived segments are copied.
        configured: settings to deliver the copies with. The new directory lies in their spool. The copies
            take at most the spool's limit, or half of the free space without a limit.
        sources: the lines to copy; by default all lines of the paths.

    Raises:
        OSError: a file cannot be read, or a copy cannot be written.
        ValueError: a directory has no segments, a path is a device, or the lines exceed the limit.
    """
    run = f"replay-{layout.new_run_id()}"
    node_dir = layout.node_directory(configured.spool_dir, run, "")
    layout.create_private(node_dir, configured.spool_dir)
    named: dict[str, str] = {}
    try:
        _copy_tokenizers(paths, node_dir)
        writer = layout.new_writer_id()
        room = configured.spool_limit or layout.default_limit(node_dir)
        for sequence, (name, lines) in enumerate(sources or sources_of(paths), start=1):
            copy = node_dir / layout.SegmentName(writer, sequence).file
            named[copy.name.removesuffix(layout.SEGMENT_SUFFIX)] = name
            room -= (size := _copy_lines(name, lines, copy, room))
            if not size:
                copy.unlink()
        exporters = tuple(configured.exporters)
        layout.write_manifest(node_dir, layout.Manifest(run, "replay", exporters, sources=named))
        yield node_dir
    except BaseException:
        _remove(node_dir.parent)  # else `status` would show it as the latest run
        raise
    left = [*layout.segments(node_dir), *node_dir.glob("rejected.*")]
    if not left:
        _remove(node_dir.parent)


def _remove(run: Path) -> None:
    """Remove a run; try again while a thread of an interrupted delivery still writes into it."""
    deadline = time.monotonic() + waits().threads
    while True:
        try:
            return shutil.rmtree(run)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or time.monotonic() > deadline:
                raise
        time.sleep(waits().poll)


def _copy_tokenizers(paths: Sequence[Path], node_dir: Path) -> None:
    """Copy the tokenizers of the files' runs: from below the paths, and from up to two directories above."""
    for path in paths:
        directories = [path.parent, path.parent.parent, *([] if path.is_file() else path.glob("**/"))]
        for found in {file for directory in directories for file in layout.tokenizer_files(directory)}:
            (node_dir / layout.TOKENIZERS).mkdir(mode=0o700, exist_ok=True)
            try:  # in a temporary directory the file may belong to another user
                content = read_beside(found)
            except OSError as error:
                logger.warning("tokenizer %s is skipped: %s", found, error)
            else:
                layout.write_whole(layout.tokenizer_file(node_dir, found.stem), content)


def _copy_lines(source: str, lines: Iterable[bytes], target: Path, room: int) -> int:
    """Copy a source's lines, with a newline after the last one; return the number of bytes written."""
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
