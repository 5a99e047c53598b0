"""Implement the command ``import``: bring recorded or delivered spans into the rollout table."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import orjson
import typer

from otel_rollout.account import node_report
from otel_rollout.cli import dumps, runs, sources
from otel_rollout.cli.dumps import DumpFormatOption, DumpName, MapOption
from otel_rollout.cli.forwarding import forward_directory
from otel_rollout.cli.page_output import say, tell
from otel_rollout.look.conversation.formatting import counted
from otel_rollout.look.errors import ViewerError
from otel_rollout.otlp.json_line import line_of
from otel_rollout.otlp.score_batch import expanded
from otel_rollout.settings import Settings
from otel_rollout.spool import files, layout
from otel_rollout.spool.segments import MAX_LINE_BYTES
from otel_rollout.table.known_spans import NewSpans
from otel_rollout.table.lease import IMPORT, Lease
from otel_rollout.table.query import Engine
from otel_rollout.table.store import Store

_UNDELIVERED, _UNREADABLE = 1, 2
"""Exit statuses: spans of a source are not in the table; a source cannot be read."""
_EXPORTER: Final = "delta"
_MLFLOW: Final = "mlflow"


def _check_exporter(to: str) -> str:
    if to != _EXPORTER:
        raise typer.BadParameter(
            f"spans are imported to {_EXPORTER!r}; `otel-rollout replay` delivers to others"
        )
    return to


def import_(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Spool, run or node directories, files of OTLP JSON, dumps of frameworks, `mlflow` or "
            "mlflow:URI.",
            metavar="PATH|mlflow:URI",
        ),
    ],
    to: Annotated[str, typer.Option(help="The exporter: delta.", callback=_check_exporter)],
    format_: DumpFormatOption = None,
    map_: MapOption = None,
) -> None:
    """Bring spans into the rollout table that OTEL_ROLLOUT_DELTA_URI names (./rollouts by default).

    Spans that the table has already are left out, so an import can be repeated.

    A path that cannot be read is named, and the others are imported.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the copies are removed
    configured = runs.settings_of_copies([_EXPORTER])
    with ExitStack() as until_end:
        target = _Target(sources.store_at(sources.default_address()), until_end)
        status = max(_status(_named(path, format_, map_), target, configured) for path in paths)
    if status:
        raise typer.Exit(status)


def _named(path: str, format_: str | None, map_: str | None) -> str | DumpName:
    """Return the dump that an argument names, else the argument."""
    if format_ or map_:
        return DumpName((path,), format_, map_)
    return path if _is_mlflow(path) else dumps.named(path) or path


class _Target:
    """The table that gets the imported spans, reserved for one import at a time.

    Args:
        store: the table.
        until_end: releases the table when the import ends.
    """

    def __init__(self, store: Store, until_end: ExitStack) -> None:
        self.uri = store.location.uri
        self._store = store
        self._until_end = until_end
        self._is_reserved = False

    def engine(self) -> Engine:
        """Return an engine for the table as it is now.

        The first call creates a missing table, and waits until no other import writes to the table.
        """
        if not self._is_reserved:
            self._store.opened_or_begun()
            self._until_end.enter_context(Lease.kept(self._store, IMPORT, say))
            self._is_reserved = True
        return Engine(self._store.open())


def _status(name: str | DumpName, target: _Target, configured: Settings) -> int:
    """Import one source; return the command's exit status for it."""
    try:
        return 0 if _import(name, target, configured) else _UNDELIVERED
    except ViewerError as error:
        say(str(error))
        return _UNREADABLE


def _import(name: str | DumpName, target: _Target, configured: Settings) -> bool:
    """Import one source, and print its counts; return whether all of its spans are in the table."""
    spans = NewSpans(target.engine)
    rest = ""
    unreadable: list[str] = []
    try:
        named = ((file, spans.of(lines)) for file, lines in _lines_of(name, unreadable.append))
        paths = name.paths if isinstance(name, DumpName) else () if _is_mlflow(name) else (name,)
        with runs.as_node_directory(list(map(Path, paths)), configured, named) as node_dir:
            if layout.segments(node_dir):
                forward_directory(node_dir, configured)
                rest = _rest(node_dir, configured)
    except (OSError, ValueError) as error:
        raise ViewerError(f"{name} cannot be imported: {runs.reason(error, str(name))}") from error
    say(*(f"{name}: {reason}" for reason in unreadable))
    new = counted(spans.new, "span")
    if rest:
        say(f"{name}: the table at {target.uri} lacks up to {new} of it. {rest}")
    else:
        known = f"{spans.known:,} were there already"
        tell(f"{name}: {new} imported to the table at {target.uri}, {known}")
    return not (rest or unreadable)


def _rest(node_dir: Path, configured: Settings) -> str:
    """Return how many lines are not in the table, and how to deliver them; empty if all lines are there."""
    count = node_report.report(node_dir, configured).exporters[_EXPORTER]
    if not (count.pending or count.rejected):
        return ""
    return (
        f"Lines pending: {count.pending}, rejected: {count.rejected}. {count.problem or ''} "
        f"They are kept on disk. Deliver them with: otel-rollout forward --spool {node_dir}"
    )


def _is_mlflow(path: str) -> bool:
    return path.partition(":")[0] == _MLFLOW and not Path(path).exists()


def _lines_of(name: str | DumpName, skipped: Callable[[str], None]) -> Iterator[runs.Named]:
    """Yield the name and the lines of each file of a source; a dump or MLflow counts as one file."""
    if isinstance(name, DumpName):
        dump = dumps.opened(name)
        yield dump.location, map(line_of, dump.spans())
        say(*dump.notes, *dump.remarks)
    elif _is_mlflow(name):
        source = sources.mlflow_source(name)
        yield source.location, source.every_line(skipped)
    else:
        for file in files.files_of([Path(name)]):
            yield str(file), _lines_of_file(file)


def _lines_of_file(path: Path) -> Iterable[bytes]:
    """Return a file's lines; a file that is one JSON document of several lines becomes one line."""
    if path.suffix == ".json" and path.stat().st_size <= MAX_LINE_BYTES:
        try:
            return [orjson.dumps(orjson.loads(path.read_bytes())) + b"\n"]
        except ValueError:  # JSON Lines
            pass
    return (span for line in files.lines_of(path) for span in expanded(line))
