"""Find span exporters by name, as OpenTelemetry does: by entry point.

Our exporter ``otlp`` has the name of one of OpenTelemetry's. So it is in our own entry-point group, which
wins here. Other programs still find OpenTelemetry's exporter.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter

from otel_rollout.base.suggest import closest, did_you_mean
from otel_rollout.exporting.api import MayBeLocal, NamesDestination, WritesTable
from otel_rollout.settings import Settings, SettingsError
from otel_rollout.spool import layout

GROUP = "opentelemetry_traces_exporter"
OWN_GROUP = "otel_rollout_exporter"
READERS = "otel_rollout_reader"
"""Entry-point group of readers of delivered trajectories, by exporter."""
ADDRESSES = "otel_rollout_addresses"
"""Entry-point group of the addresses of trajectories' pages, by exporter."""


def installed() -> dict[str, EntryPoint]:
    """Return the span exporters of all installed distributions by name."""
    return {point.name: point for group in (GROUP, OWN_GROUP) for point in entry_points(group=group)}


def other_target(exporter: str) -> str:
    """Return the option that a suggested ``forward`` command needs if an exporter is unknown; else "".

    It has the similar name of an installed exporter, or NAME.
    """
    known = installed()
    return "" if exporter in known else f"--to {closest(exporter, known) or 'NAME'} "


def offered(group: str, exporter: str) -> Any:
    """Import what an exporter's package offers beside the exporter.

    Raises:
        ModuleNotFoundError: the package, or one that it needs, is not installed.
    """
    for point in entry_points(group=group, name=exporter):
        return point.load()
    raise ModuleNotFoundError(f"{exporter!r} is not installed")


def check_names(names: Iterable[str]) -> None:
    """Check that exporters exist, without importing them.

    Raises:
        SettingsError: naming each exporter that does not exist, a similar name, and all that exist.
    """
    known = installed()
    unknown = [name for name in names if name not in known]
    if unknown:
        meant = "".join(dict.fromkeys(did_you_mean(name, known) for name in unknown))
        raise SettingsError(
            f"no span exporter is called {', '.join(map(repr, unknown))} "
            f"(OTEL_TRACES_EXPORTER, configure(exporters=…) or --to).{meant} "
            f"Installed: {', '.join(sorted(known))}. "
            "Others come with their packages, as entry points of group " + GROUP + "."
        )


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Check that an exporter's constructor has these options; imports the exporter.

    An exporter that cannot be imported here passes: the forwarder says what is missing.

    Raises:
        SettingsError: naming the option that does not exist, a similar name, and all options.
    """
    try:
        parameters = inspect.signature(installed()[name].load()).parameters.values()
    except Exception:  # noqa: BLE001 - importing a foreign package may raise anything
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters]
    for option in options:
        if option not in known:
            raise SettingsError(
                f"exporter {name!r} has no option {option!r}.{did_you_mean(option, known)} "
                f"Options: {', '.join(known)}."
            )


def load(name: str, options: Mapping[str, Any]) -> SpanExporter:
    """Build the exporter ``name`` with keyword arguments ``options``.

    Raises:
        SettingsError: the exporter or a package that it needs is not installed, or the exporter does not
            accept its options.
    """
    check_names([name])
    try:
        exporter_class = installed()[name].load()
    except ImportError as error:
        raise SettingsError(f"exporter {name!r} needs a package that is missing: {error}.") from error
    try:
        return cast("SpanExporter", exporter_class(**options))
    except SettingsError:
        raise
    except Exception as error:  # a foreign constructor may raise anything; the message must reach a person
        raise SettingsError(f"exporter {name!r} cannot be set up: {type(error).__name__}: {error}") from error


def destination_of(exporter: SpanExporter, project: str) -> str:
    """Return where people find an exporter's spans; empty if unknown."""
    if isinstance(exporter, ConsoleSpanExporter):
        return _standard_output()
    return str(exporter.destination(project)) if isinstance(exporter, NamesDestination) else ""


def _standard_output() -> str:
    """Return the file behind standard output, which is the forwarder's log."""
    try:
        path = os.readlink("/proc/self/fd/1")
    except OSError:  # not Linux, or closed
        path = ""
    return path if os.path.isfile(path) else "the forwarder's standard output"


def is_for_another_machine(exporter: SpanExporter, configured: Settings) -> bool:
    """Return whether the exporter's target is a file and this is not the run's home machine."""
    is_home = configured.home_node in ("", configured.node or layout.node_id())
    return isinstance(exporter, MayBeLocal) and exporter.target_is_local and not is_home


def home_table(node_dir: Path, configured: Settings, exporters: Mapping[str, SpanExporter]) -> str | None:
    """Return the address of the table that this forwarder looks after; None on any but the home machine."""
    # By the directory: this machine may also forward the directories of others, which were copied here.
    home = layout.node_directory(Path(), "", configured.home_node or configured.node)
    tables = (exporter.table_uri for exporter in exporters.values() if isinstance(exporter, WritesTable))
    return next(tables, None) if node_dir.name == home.name else None


def for_another_machine(configured: Settings) -> list[str]:
    """Return the exporters for which :func:`is_for_another_machine` is true."""
    found = []
    for name, options in configured.exporters.items():
        try:
            exporter = load(name, options)
        except SettingsError:  # the forwarder reports it
            continue
        if is_for_another_machine(exporter, configured):
            found.append(name)
        exporter.shutdown()
    return found
