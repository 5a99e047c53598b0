"""Finding span exporters by name, the way OpenTelemetry does: by entry point.

Those of ours that have the name of one of OpenTelemetry's (``otlp``) are in a group of our own, which comes
first here: other programs go on finding OpenTelemetry's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from opentelemetry.sdk.trace.export import SpanExporter

from otel_rollout import spool
from otel_rollout.settings import Settings, SettingsError

GROUP = "opentelemetry_traces_exporter"
OWN_GROUP = "otel_rollout_exporter"


def installed() -> dict[str, EntryPoint]:
    """The span exporters of all installed distributions."""
    return {point.name: point for group in (GROUP, OWN_GROUP) for point in entry_points(group=group)}


def check_names(names: Iterable[str]) -> None:
    """Check that exporters exist, without importing them.

    Raises:
        SettingsError: naming those that do not and those that do.
    """
    known = installed()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SettingsError(
            f"no span exporter is called {', '.join(map(repr, unknown))} "
            f"(OTEL_TRACES_EXPORTER, configure(exporters=…) or --to). Installed: {', '.join(sorted(known))}. "
            "Others come with their packages, as entry points of group " + GROUP + "."
        )


def load(name: str, options: Mapping[str, Any]) -> SpanExporter:
    """Build the exporter ``name`` with keyword arguments ``options``.

    Raises:
        SettingsError: when it is not installed, something it needs is missing, or it does not accept its
            settings.
    """
    check_names([name])
    try:
        exporter_class = installed()[name].load()
    except ImportError as error:
        raise SettingsError(
            f"exporter {name!r} needs a package that is missing: {error}. "
            f"Install it with: pip install 'otel-rollout[{name}]'"
        ) from error
    try:
        return cast("SpanExporter", exporter_class(**options))
    except SettingsError:
        raise
    except Exception as error:  # whatever a foreign constructor raises, a person has to read it
        raise SettingsError(f"exporter {name!r} cannot be set up: {type(error).__name__}: {error}") from error


def is_for_another_machine(exporter: SpanExporter, configured: Settings) -> bool:
    """Whether the exporter writes to a file that only the run's home machine may write to."""
    is_home = configured.home_node in ("", configured.node or spool.node_id())
    return bool(getattr(exporter, "target_is_local", False)) and not is_home


def for_another_machine(configured: Settings) -> list[str]:
    """The run's exporters that deliver on its home machine only, when this is another one."""
    found = []
    for name, options in configured.exporters.items():
        try:
            exporter = load(name, options)
        except SettingsError:  # the forwarder says so
            continue
        if is_for_another_machine(exporter, configured):
            found.append(name)
        exporter.shutdown()
    return found
