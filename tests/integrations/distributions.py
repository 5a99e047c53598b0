"""Distributions with an instrumentor, and libraries for it to instrument, written for a test."""

from __future__ import annotations

from pathlib import Path

INSTRUMENTOR = """
from opentelemetry import trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

class {class_}(BaseInstrumentor):
    def instrumentation_dependencies(self):
        return ("{library}",)

    def _instrument(self, **kwargs):
        import {library} as library
        tracer = trace.get_tracer(__name__, "1.0", kwargs.get("tracer_provider"))
        self.original = library.call
        {body}

        def call(*args):
            with tracer.start_as_current_span("call of {library}"):
                return self.original(*args)

        library.call = call

    def _uninstrument(self, **kwargs):
        import {library} as library
        library.call = self.original
"""


def add_library(site: Path, name: str, version: str = "2.0") -> None:
    """Write a library whose function ``call`` returns its argument."""
    _distribution(site, name, version, {f"{name}/__init__.py": "def call(value):\n    return value\n"})


def add_instrumentor(
    site: Path,
    distribution: str,
    library: str,
    *,
    name: str = "",
    needs: str = "",
    groups: tuple[str, ...] = ("opentelemetry_instrumentor",),
    body: str = "pass",
) -> None:
    """Write an instrumentor of ``library.call``.

    Args:
        distribution: its distribution.
        library: what it instruments.
        name: name of its entry point; by default the library's.
        needs: the library's versions that it can instrument, such as ``>=3``.
        groups: its entry-point groups.
        body: a statement that runs when it is switched on.
    """
    module = distribution.replace("-", "_")
    class_ = f"{library.title()}Instrumentor"
    code = INSTRUMENTOR.format(class_=class_, library=library, body=body)
    points = "".join(f"[{group}]\n{name or library} = {module}:{class_}\n" for group in groups)
    requires = f'Provides-Extra: instruments\nRequires-Dist: {library}{needs}; extra == "instruments"\n'
    _distribution(site, distribution, "0.5", {f"{module}/__init__.py": code}, points, requires)


def _distribution(
    site: Path, name: str, version: str, files: dict[str, str], points: str = "", requires: str = ""
) -> None:
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/entry_points.txt": points,
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in files)
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
