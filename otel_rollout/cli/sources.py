"""Find the table or spool that the option ``--from`` names."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from otel_rollout import settings_reader
from otel_rollout.account.ledger_reader import read_ledger
from otel_rollout.account.progress import is_on_a_terminal
from otel_rollout.cli import dumps
from otel_rollout.cli.dumps import DumpName
from otel_rollout.cli.page_output import say
from otel_rollout.look.errors import ViewerError
from otel_rollout.look.sources.mlflow_source import MlflowSource
from otel_rollout.look.sources.private_table import SpanSource, table_of
from otel_rollout.look.sources.spool_source import SpoolSource
from otel_rollout.spool import layout
from otel_rollout.table.errors import TableError
from otel_rollout.table.location import DEFAULT_URI, location_of
from otel_rollout.table.store import Store

_URI_VARIABLE: Final = "OTEL_ROLLOUT_DELTA_URI"
_LOG: Final = "_delta_log"


def table_address(from_: str | DumpName | None) -> str | None:
    """Return the address of the table that ``--from`` names; None if it names neither table nor dump.

    If the option names a dump, a table is made from the dump.

    Args:
        from_: the option; None for the table of the environment variable, else the table in this directory.
    """
    named = from_ if isinstance(from_, DumpName) else table_or_dump(from_)
    return str(dumps.table_of(named)) if isinstance(named, DumpName) else named


def table_or_dump(from_: str | None) -> str | DumpName | None:
    """Return the table's address or the dump that ``--from`` names; None if it names neither."""
    if from_ is None:
        configured = os.environ.get(_URI_VARIABLE)
        return configured or (DEFAULT_URI if _is_table(DEFAULT_URI, unknown=True) else None)
    scheme, separator, _ = from_.partition("://")
    is_uri = bool(separator) and ":" not in scheme  # unlike mlflow:http://…
    return from_ if is_uri or _is_table(from_, unknown=False) else dumps.named(from_)


def default_address() -> str:
    """Return the address of the table that the exporter writes: the environment's, else ``./rollouts``."""
    return os.environ.get(_URI_VARIABLE) or DEFAULT_URI


def store_at(address: str) -> Store:
    """Return the table at an address.

    Raises:
        TableError: the address is wrong.
    """
    named_by = _URI_VARIABLE if address == os.environ.get(_URI_VARIABLE) else ""
    try:
        return Store(dataclasses.replace(location_of(address), named_by=named_by))
    except ValueError as error:
        raise TableError(str(error)) from error


@contextmanager
def as_table(
    from_: str | None,
    address: str | None = None,
    spans: Callable[[str | None], SpanSource] | None = None,
) -> Iterator[tuple[Store, str]]:
    """Yield a table and the name of its source; a temporary table holds the spans of a spool.

    Args:
        from_: the option ``--from``.
        address: the table's address if it is known.
        spans: opens a source that is no table; by default a spool or file.

    Raises:
        TableError: the table cannot be read.
        ViewerError: the spool or file cannot be read.
    """
    address = table_address(from_) if address is None else address
    if address is not None:
        store = store_at(address)
        is_itself = from_ in (None, address)  # and no table that was made of a dump
        yield store, store.location.uri if is_itself else str(from_)
        return
    source = (spans or spool_source)(from_)
    with table_of(source) as store:
        yield store, source.location


def mlflow_source(from_: str) -> MlflowSource:
    """Return the server or database that ``mlflow`` or ``mlflow:URI`` names, with the environment's project.

    Raises:
        ViewerError: MLflow cannot be read.
    """
    return MlflowSource(from_.partition(":")[2] or None, os.environ.get("OTEL_ROLLOUT_PROJECT") or None)


def spool_source(from_: str | None) -> SpoolSource:
    """Return the spool or file that ``--from`` names; without the option, the environment's spool.

    Raises:
        ViewerError: the option names MLflow, or the spool or file cannot be read.
    """
    if from_ is not None and from_.partition(":")[0] == "mlflow":
        raise ViewerError(
            "This command reads tables, spools, dumps and files of OTLP. "
            f"`otel-rollout import {from_} --to delta` brings what MLflow has into a table; "
            f"`otel-rollout show --from {from_}` shows it without one."
        )
    if from_:
        return SpoolSource(Path(from_))
    configured, _ = settings_reader.from_environment(os.environ)
    if not os.path.lexists(configured.spool_dir):
        raise ViewerError(
            f"There is no rollout table at {default_address()}, and no spool at {configured.spool_dir}. "
            "OTEL_TRACES_EXPORTER=mlflow,delta writes a table here, and so does `otel-rollout demo`; "
            "--from names another one."
        )
    if problem := layout.problem_of(configured.spool_dir):
        raise ViewerError(problem)
    try:
        source = SpoolSource(configured.spool_dir, is_named=False)
    except ViewerError as error:
        table = _newest_table(configured.spool_dir)
        advice = f"The newest run was delivered to {table}" if table else str(error)
        raise ViewerError(f"There is no rollout table at {default_address()}. {advice}") from error
    if is_on_a_terminal():
        say(f"No rollout table at {default_address()}: this is the spool {configured.spool_dir}.")
    return source


def _newest_table(spool: Path) -> str:
    """Return which table has the newest run of a spool, and the option that names it; else ""."""
    with suppress(OSError, sqlite3.Error):
        for node_dir in layout.node_directories(spool)[-1:]:
            said = read_ledger(node_dir).destinations.get("delta", "")
            uri = said.removeprefix("the table at ")
            if "://" in uri or _is_table(uri, unknown=False):
                return f"{said}: --from {shlex.quote(uri)}"
    return ""


def _is_table(path: str, unknown: bool) -> bool:
    """Return whether a path is a table; for an existing path that cannot be listed, return ``unknown``."""
    place = Path(path).expanduser()
    try:
        os.scandir(place).close()
    except OSError:
        return unknown and os.path.lexists(place)
    return os.path.lexists(place / _LOG)
