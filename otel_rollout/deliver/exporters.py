"""Finding span exporters by name, the way OpenTelemetry does: by entry point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from opentelemetry.sdk.trace.export import SpanExporter

from otel_rollout.settings import SettingsError

GROUP = "opentelemetry_traces_exporter"


def installed() -> dict[str, EntryPoint]:
    """The span exporters of all installed distributions."""
    return {point.name: point for point in entry_points(group=GROUP)}


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
            f"(OTEL_TRACES_EXPORTER, or configure(exporters=…)). Installed: {', '.join(sorted(known))}. "
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
