"""Implement the command ``otel-rollout view``: serve the pages of runs on this machine."""

from __future__ import annotations

import os
import shutil
import webbrowser
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from otel_rollout.cli import dumps, sources
from otel_rollout.cli.dumps import DumpFormatOption, DumpName, MapOption
from otel_rollout.cli.page_output import say
from otel_rollout.cli.table import FromOption, NewestRunOption
from otel_rollout.look.dumps.opening import files_of
from otel_rollout.look.web import server
from otel_rollout.look.web.links import ALL_RUNS, ServedLinks
from otel_rollout.look.web.live import Live, NotReadyError
from otel_rollout.look.web.snapshot import Origin, spool_origin, table_origin

if TYPE_CHECKING:
    from deltalake import DeltaTable

_PORT: Final = 8642
_PACKAGES: Final = ("starlette", "uvicorn", "deltalake")
"""Packages of the extra ``view``."""


def view(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            help="Dumps of rollouts: files, folders and patterns; or what --from takes.", metavar="PATH"
        ),
    ] = None,
    from_: FromOption = None,
    format_: DumpFormatOption = None,
    map_: MapOption = None,
    run: NewestRunOption = None,
    port: Annotated[int, typer.Option("--port", help="Port of 127.0.0.1; 0 for a free one.")] = _PORT,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")] = False,
) -> None:
    """Serve a run's pages to a browser on this machine: steps, groups, trajectories, time and health."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        say(f"The pages need {' and '.join(missing)}: pip install 'otel-rollout[view]'")
        raise typer.Exit(2)
    followed = Live(_origin(_source(paths or [], from_, format_, map_)))
    try:
        listening = server.bound(port)
        followed.start()
        address = f"http://{server.HOST}:{listening.getsockname()[1]}{_first_page(followed, run)}"
        typer.echo(f"{followed.origin.location} at {address}\nEnd with Ctrl-C.")
        if followed.problem:
            say(f"{followed.problem} Its pages appear once there is one.")
        if open_:
            webbrowser.open(address)
        server.serve(followed, listening, run)
    except KeyboardInterrupt:
        typer.echo("\nThe server has ended.")
        followed.stop()
        os._exit(0)  # a thread may compute in the engine, which crashes if the interpreter ends meanwhile
    finally:
        followed.stop()


def _source(
    paths: list[str], from_: str | None, format_: str | None, map_: str | None
) -> str | DumpName | None:
    """Return what the arguments name, in the form of the option ``--from``."""
    named = [*([from_] if from_ is not None else []), *paths]
    if len(named) > 1 or format_ or map_:
        return DumpName(tuple(named), format_, map_)
    return named[0] if named else None


def _origin(from_: str | DumpName | None) -> Origin:
    """Return the table, dump or spool that the arguments name."""
    if isinstance(from_, DumpName):
        return _dump_origin(from_)
    named = sources.table_or_dump(from_)
    if isinstance(named, DumpName):
        return _dump_origin(named)
    if named is not None:
        return table_origin(sources.store_at(named))
    return spool_origin(lambda: sources.spool_source(from_))


def _dump_origin(name: DumpName) -> Origin:
    """Return the origin for a dump, which may grow while its pages are served."""
    newest: Path | None = None

    def version() -> Hashable:
        """Return names, sizes and times of the files."""
        states = [(path, path.stat()) for path, _ in files_of(name.paths)]
        return tuple((str(path), state.st_size, state.st_mtime_ns) for path, state in states)

    @contextmanager
    def table() -> Iterator[DeltaTable]:
        """Yield the table of the dump; it is removed afterwards if the dump has grown meanwhile."""
        nonlocal newest
        table = newest = dumps.table_of(name)
        try:
            yield sources.store_at(str(table)).open()
        finally:
            if table != newest:
                shutil.rmtree(table, ignore_errors=True)

    return Origin(str(name), version, table)


def _first_page(followed: Live, run: str | None) -> str:
    """Return the path of the page to open: a run's if one is named.

    Raises:
        QueryError: there is no such run.
    """
    if run is None:
        return ALL_RUNS
    try:
        with followed.snapshot() as snapshot:
            return ServedLinks().of_run(snapshot.row_named(run).run)
    except NotReadyError:
        return ALL_RUNS
