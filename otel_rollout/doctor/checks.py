"""What can be checked on the machine this runs on; on a node of a cluster, by its probe."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from otel_rollout import configuration, settings
from otel_rollout.doctor import filesystem, variables
from otel_rollout.doctor.report import Finding, Verdict
from otel_rollout.exporting.api import Checks, ExportFailure, FailureKind

DISTRIBUTIONS: Final = ("otel-rollout", "opentelemetry-api", "opentelemetry-sdk", "ray")
_SPOOL_VARIABLE: Final = "OTEL_ROLLOUT_SPOOL_DIR"

_ADVICE: Final = {
    FailureKind.UNAVAILABLE: "Start the target, or correct its address. Until then spans wait on disk.",
    FailureKind.REJECTED: "Nothing is delivered until this is put right; spans wait on disk.",
    FailureKind.REFUSED: "Nothing is delivered until this is put right; spans wait on disk.",
}


def this_machine(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Everything about the machine and environment this runs in."""
    configured, problems = configuration.from_environment(environ)
    yield tracing(environ, configured, problems)
    yield Finding("library", Verdict.OK, described_versions(versions()))
    yield Finding("python", Verdict.OK, f"{sys.executable} (prefix {sys.prefix})")
    present = variables.names(environ)
    yield Finding("variables", Verdict.OK, ", ".join(present) or "none")
    yield from recording_and_delivery(environ, configured, writes_files=True)


def on_node(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What a node has to be able to do, in an environment like the driver's."""
    configured, _ = configuration.from_environment(environ)
    yield from recording_and_delivery(environ, configured, writes_files=False)


def recording_and_delivery(
    environ: Mapping[str, str], configured: settings.Settings, writes_files: bool
) -> Iterator[Finding]:
    """The spool, and each exporter with its endpoint.

    Args:
        environ: ``os.environ``, which exporters read for themselves.
        configured: settings read from it.
        writes_files: whether exporters to files such as ``sqlite:///`` may open them here.
    """
    shown = f"${_SPOOL_VARIABLE}" if environ.get(_SPOOL_VARIABLE) else str(configured.spool_dir)
    yield filesystem.spool_place(Path(configured.spool_dir), shown)
    for name, options in configured.exporters.items():
        yield from exporter(name, options, environ, writes_files)


def versions() -> dict[str, str]:
    """Versions of this Python and of the distributions that matter; without those not installed."""
    found = {"Python": platform.python_version()}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def described_versions(found: Mapping[str, str]) -> str:
    """Versions as people read them."""
    absent = [name for name in DISTRIBUTIONS if name not in found]
    shown = [f"{name} {version}" for name, version in found.items()]
    return ", ".join([*shown, *(f"no {name}" for name in absent)])


def tracing(environ: Mapping[str, str], configured: settings.Settings, problems: list[str]) -> Finding:
    """Whether tracing is switched on, and by which variable."""
    check = "tracing"
    problems = [*problems, *configuration.unknown_variables(environ)]
    if problems:
        found = variables.hide(" ".join(problems), environ)
        return Finding(check, Verdict.FAIL, found, "Correct the variables named.")
    if configured.sdk_disabled:
        return Finding(check, Verdict.WARN, "off: OTEL_SDK_DISABLED says so", "Unset it to trace.")
    if not configured.exporters:
        return Finding(
            check,
            Verdict.WARN,
            "off in this environment: no variable names an exporter",
            f"Set {variables.EXPORTERS}=mlflow, or call otel_rollout.configure(exporters=…) in the driver.",
        )
    source = variables.EXPORTERS if environ.get(variables.EXPORTERS, "").strip() else settings.CONFIG_VARIABLE
    return Finding(check, Verdict.OK, f"on: {source} names {', '.join(configured.exporters)}")


def exporter(
    name: str, options: Mapping[str, Any], environ: Mapping[str, str], writes_files: bool
) -> Iterator[Finding]:
    """Whether an exporter can be built, and whether its endpoint takes spans from us."""
    from otel_rollout.exporting import registry

    with contextlib.redirect_stdout(sys.stderr):  # what libraries print must not get into our JSON
        try:
            built = registry.load(name, options)
        except Exception as error:  # noqa: BLE001 - a SettingsError, or what an import raised
            words = (
                str(error)
                if isinstance(error, settings.SettingsError)
                else f"{type(error).__name__}: {error}"
            )
            yield Finding(
                "exporter",
                Verdict.FAIL,
                variables.hide(f"{name}: {words}", environ),
                "Nothing is delivered by it.",
            )
            return
        yield Finding("exporter", Verdict.OK, f"{name}: {type(built).__module__}.{type(built).__qualname__}")
        try:
            if writes_files or not variables.in_files(environ, options):
                yield endpoint(name, built, environ)
            else:
                yield Finding("endpoint", Verdict.OK, f"{name}: a file, which only the driver's node writes")
        finally:
            with contextlib.suppress(Exception):
                built.shutdown()


def endpoint(name: str, built: Any, environ: Mapping[str, str]) -> Finding:
    """Ask an exporter that offers ``check()`` whether its target is there and takes spans from us."""
    if not isinstance(built, Checks):
        return Finding(
            "endpoint", Verdict.WARN, f"{name}: not checked, the exporter has no check()",
            "See `otel-rollout status` after the first spans.",
        )  # fmt: skip
    try:
        failure: object = built.check()
    except Exception as error:  # noqa: BLE001 - whatever an exporter raises, a person has to read it
        found = variables.hide(f"{name}: check() raised {type(error).__name__}: {error}", environ)
        return Finding("endpoint", Verdict.FAIL, found, "Report it to the exporter's makers.")
    if failure is None:
        return Finding("endpoint", Verdict.OK, f"{name}: reachable, recent enough, accepts our credentials")
    if not isinstance(failure, ExportFailure):
        return Finding("endpoint", Verdict.WARN, f"{name}: check() says nothing we understand")
    found = variables.hide(f"{name}: {failure.message}", environ)
    return Finding("endpoint", Verdict.FAIL, found, _ADVICE[failure.kind])
