"""Implement the command ``otel-rollout view``: serve the pages of runs on this machine."""

from __future__ import annotations

import webbrowser
from importlib.util import find_spec
from typing import Annotated, Final

import typer

from otel_rollout.cli import sources
from otel_rollout.cli.dumps import DumpFormatOption, DumpName, MapOption
from otel_rollout.cli.table import FromOption, errors_reported
from otel_rollout.look.web import server
from otel_rollout.look.web.links import ALL_RUNS, ServedLinks
from otel_rollout.look.web.live import Live, NotReadyError
from otel_rollout.look.web.snapshot import Origin, SpoolOrigin, TableOrigin

_PORT: Final = 8642
_PACKAGES: Final = ("starlette", "uvicorn", "deltalake")
"""Packages of the extra ``view``."""


def view(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            help="Dumps of rollouts: files, folders and patterns; or what --from takes.", metavar="[PATH]..."
        ),
    ] = None,
    from_: FromOption = None,
    format_: DumpFormatOption = None,
    map_: MapOption = None,
    run: Annotated[
        str | None, typer.Option("--run", help="A run's id or experiment. \\[default: the newest run]")
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Port of 127.0.0.1; 0 for a free one.")] = _PORT,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")] = False,
) -> None:
    """Serve a run's pages to a browser on this machine: steps, groups, trajectories, time and health."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        typer.echo(f"The pages need {' and '.join(missing)}: pip install 'otel-rollout[view]'", err=True)
        raise typer.Exit(2)
    with errors_reported():
        followed = Live(_origin(_source(paths or [], from_, format_, map_)))
        try:
            listening = server.bound(port)
            followed.start()
            address = f"http://{server.HOST}:{listening.getsockname()[1]}{_first_page(followed, run)}"
            typer.echo(f"{followed.origin.location} at {address}\nEnd with Ctrl-C.")
            if followed.problem:
                typer.echo(f"{followed.problem} Its pages appear once there is one.", err=True)
            if open_:
                webbrowser.open(address)
            server.serve(followed, listening, run)
        except server.PortError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt:
            typer.echo("\nThe server has ended.")
        finally:
            followed.stop()


def _source(paths: list[str], from_: str | None, format_: str | None, map_: str | None) -> str | None:
    """Return what the arguments name, in the form of the option ``--from``."""
    named = [*([from_] if from_ is not None else []), *paths]
    if len(named) > 1 or format_ or map_:
        return DumpName.of(named, format_, map_)
    return named[0] if named else None


def _origin(from_: str | None) -> Origin:
    """Return the table or spool that the option ``--from`` names."""
    address = sources.table_address(from_)
    if address is not None:
        store = sources.store_at(address)
        return TableOrigin(store, sources.name_of(store, address, from_))
    location = sources.spool_source(from_).location
    return SpoolOrigin(location, lambda: sources.spool_source(from_))


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
