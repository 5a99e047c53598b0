"""Instrumentors that tests install, of libraries that are installed anyway."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

SITE = {
    "openinference-instrumentation-wave": ("wave = tests.doctor.libraries:WaveInstrumentor", "attrs>=1"),
    "opentelemetry-instrumentation-wave": ("wave = tests.doctor.libraries:OtherWaveInstrumentor", "attrs>=1"),
    "opentelemetry-instrumentation-old": ("old = tests.doctor.libraries:OldInstrumentor", "hypothesis>=1000"),
    "opentelemetry-instrumentation-absent": (
        "absent = tests.doctor.absent:Instrumentor",
        "no-such-library",
    ),
    "opentelemetry-instrumentation-urllib3": (
        "urllib3 = tests.doctor.libraries:HttpInstrumentor",
        "urllib3",
    ),
}
"""Distribution → its entry point, and the library that it needs. Tests import attrs and hypothesis."""


def install(site: Path) -> None:
    """Write the metadata of the distributions to ``site``."""
    for name, (entry_point, library) in SITE.items():
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
            f"Provides-Extra: instruments\nRequires-Dist: {library}; extra == 'instruments'\n"
        )
        (info / "entry_points.txt").write_text(f"[opentelemetry_instrumentor]\n{entry_point}\n")


class _InstrumentsNothing:
    def instrumentation_dependencies(self) -> Collection[str]:
        return ()

    def _instrument(self, **kwargs: Any) -> None: ...

    def _uninstrument(self, **kwargs: Any) -> None: ...


class WaveInstrumentor(_InstrumentsNothing, BaseInstrumentor):  # type: ignore[misc]
    """Instruments attrs, as far as its metadata say."""


class OtherWaveInstrumentor(_InstrumentsNothing, BaseInstrumentor):  # type: ignore[misc]
    """Instruments the same library."""


class OldInstrumentor(_InstrumentsNothing, BaseInstrumentor):  # type: ignore[misc]
    """Needs a version of its library that does not exist."""


class HttpInstrumentor(_InstrumentsNothing, BaseInstrumentor):  # type: ignore[misc]
    """Is called as OpenTelemetry's of an HTTP client."""
