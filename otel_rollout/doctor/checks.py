"""Check the machine that runs this code: the driver's, or a node of a cluster."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from otel_rollout import settings, settings_reader
from otel_rollout.base import redaction_names
from otel_rollout.base.environment import without_receiver
from otel_rollout.doctor import filesystem, frameworks, libraries, variables
from otel_rollout.doctor.diagnosis import DoctorCheck, DoctorFinding
from otel_rollout.exporting.api import Checks, ExportFailure, FailureKind
from otel_rollout.integrations.instrumentors import is_importable
from otel_rollout.record.receiver.listening import ListenError, check_address, check_free, split_address
from otel_rollout.record.recording.application import SDK_FILE

DISTRIBUTIONS: Final = ("otel-rollout", "opentelemetry-api", "opentelemetry-sdk", "ray")
"""Packages whose versions are shown and compared."""
_SPOOL_VARIABLE: Final = "OTEL_ROLLOUT_SPOOL_DIR"
_EXPORTER: Final = DoctorCheck("exporter")
_ENDPOINT: Final = DoctorCheck("endpoint")

_ADVICE: Final = {
    FailureKind.UNAVAILABLE: "Start the target, or correct its address. Until then spans stay on disk.",
    FailureKind.REJECTED: "Correct this. Until then nothing is delivered, and spans stay on disk.",
    FailureKind.REFUSED: "Correct this. Until then nothing is delivered, and spans stay on disk.",
}


def check_this_machine(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Check the driver's machine in the given environment."""
    configured, problems = settings_reader.from_environment(environ)
    yield check_tracing(environ, configured, problems)
    yield DoctorCheck("library").ok(described_versions(versions()))
    yield DoctorCheck("python").ok(f"{sys.executable} (prefix {sys.prefix})")
    present = sorted({*variables.names(environ), *variables.of_other_exporters(environ)})
    yield DoctorCheck("variables").ok(", ".join(present) or "none")
    if environ.get(SDK_FILE):
        found = f"{SDK_FILE} is set: the SDK takes its settings from there, otel-rollout does not"
        advice = f"Keep {variables.EXPORTERS} and the other variables that trajectories need."
        yield DoctorCheck("variables").warn(found, advice)
    yield from frameworks.check_frameworks(configured)
    yield from frameworks.check_engines()
    yield from libraries.check_libraries(configured)
    yield from _check_recording_and_delivery(environ, configured, writes_files=True)


def check_node(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Check a node of a cluster, in an environment that has the driver's variables."""
    configured, _ = settings_reader.from_environment(environ)
    yield from libraries.check_chosen(configured)
    yield from _check_recording_and_delivery(environ, configured, writes_files=False)


def _check_recording_and_delivery(
    environ: Mapping[str, str], configured: settings.Settings, writes_files: bool
) -> Iterator[DoctorFinding]:
    """Check the spool directory, and each exporter with its endpoint.

    Args:
        environ: ``os.environ``, which exporters read as well.
        configured: settings read from ``environ``.
        writes_files: whether an exporter may open a target that is a file, such as ``sqlite:///``.
    """
    shown = f"${_SPOOL_VARIABLE}" if environ.get(_SPOOL_VARIABLE) else str(configured.spool_dir)
    yield filesystem.check_spool_directory(Path(configured.spool_dir), shown)
    yield from check_receiver(environ, configured)
    for name, options in configured.exporters.items():
        yield from _check_exporter(name, options, environ, writes_files)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed ``DISTRIBUTIONS``."""
    return {"Python": platform.python_version(), **libraries.versions_of(DISTRIBUTIONS)}


def described_versions(found: Mapping[str, str]) -> str:
    """Format versions, and name the distributions that are not installed."""
    absent = [name for name in DISTRIBUTIONS if name not in found]
    shown = [f"{name} {found[name]}" for name in ("Python", *DISTRIBUTIONS) if name in found]
    return ", ".join([*shown, *(f"no {name}" for name in absent)])


def check_tracing(
    environ: Mapping[str, str], configured: settings.Settings, problems: list[str]
) -> DoctorFinding:
    """Check whether tracing is on, and which variable switches it on or off."""
    check = DoctorCheck("tracing")
    wrong = redaction_names.problem(configured.redact)
    redaction = [f"OTEL_ROLLOUT_REDACT {wrong}; tracing is off."] if wrong else []
    problems = [*problems, *redaction, *settings_reader.unknown_variables(environ)]
    if problems:
        found = variables.mask(" ".join(problems), environ)
        return check.fail(found, "Correct or unset these variables.")
    if configured.sdk_disabled:
        return check.warn("off: OTEL_SDK_DISABLED is true", "Unset it to trace.")
    if not configured.exporters:
        return check.warn(
            "off in this environment: no variable names an exporter",
            f"Set {variables.EXPORTERS}=mlflow, or call otel_rollout.configure(exporters=…) in the driver.",
        )
    source = variables.EXPORTERS if environ.get(variables.EXPORTERS, "").strip() else settings.CONFIG_VARIABLE
    return check.ok(f"on: {source} names {', '.join(configured.exporters)}")


def _check_exporter(
    name: str, options: Mapping[str, Any], environ: Mapping[str, str], writes_files: bool
) -> Iterator[DoctorFinding]:
    """Check whether an exporter can be built, and whether its endpoint accepts spans."""
    from otel_rollout.exporting import entry_points

    with contextlib.redirect_stdout(sys.stderr):  # libraries may print, and stdout is for JSON
        try:
            exporter = entry_points.load(name, options)
        except Exception as error:  # noqa: BLE001 - SettingsError, or any error of the exporter's imports
            is_ours = isinstance(error, settings.SettingsError)
            message = str(error) if is_ours else f"{type(error).__name__}: {error}"
            found = variables.mask(f"{name}: {message}", environ)
            advice = "Correct this. Until then this exporter delivers nothing, and spans stay on disk."
            yield _EXPORTER.fail(found, advice)
            return
        class_ = type(exporter)
        yield _EXPORTER.ok(f"{name}: {class_.__module__}.{class_.__qualname__}")
        try:
            if writes_files or not variables.is_target_a_file(environ, options):
                yield _check_endpoint(name, exporter, environ)
            else:
                yield _ENDPOINT.ok(f"{name}: a file, which only the driver's node writes")
        finally:
            with contextlib.suppress(Exception):
                exporter.shutdown()


def _check_endpoint(name: str, exporter: Any, environ: Mapping[str, str]) -> DoctorFinding:
    """Check the target of an exporter that offers ``check()``."""
    if not isinstance(exporter, Checks):
        return _ENDPOINT.warn(
            f"{name}: not checked, because the exporter has no check()",
            "Run `otel-rollout status` after the first spans were recorded.",
        )
    try:
        failure: object = exporter.check()
    except Exception as error:  # noqa: BLE001 - an exporter's check() may raise anything
        found = variables.mask(f"{name}: check() raised {type(error).__name__}: {error}", environ)
        advice = "This is an error in the exporter: report it to its makers."
        return _ENDPOINT.fail(found, advice)
    if failure is None:
        return _ENDPOINT.ok(f"{name}: reachable, recent enough, accepts our credentials")
    if not isinstance(failure, ExportFailure):
        found = f"{name}: not known, because check() returned neither None nor an ExportFailure"
        return _ENDPOINT.warn(found)
    found = variables.mask(f"{name}: {failure.message}", environ)
    return _ENDPOINT.fail(found, _ADVICE[failure.kind])


# --- whether this machine can receive OTLP, if OTEL_ROLLOUT_RECEIVE asks for it -----------------------------


_RECEIVER: Final = DoctorCheck("receiver")
_NEEDED: Final = ("uvicorn", "opentelemetry.proto", "google.rpc")
_DEFAULT_ENDPOINT: Final = "http://localhost:4318"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def check_receiver(environ: Mapping[str, str], configured: settings.Settings) -> Iterator[DoctorFinding]:
    """Check what the receiver imports, its address, and where the variables send other programs' spans."""
    if not configured.receive:
        return
    missing = [name for name in _NEEDED if not is_importable(name)]
    if missing:
        advice = "Install it with: pip install 'otel-rollout[receive]'"
        yield _RECEIVER.fail(f"cannot start without {', '.join(missing)}", advice)
        return
    endpoint = variables.otlp_endpoint(without_receiver(environ))
    if "otlp" in configured.exporters and _is_at(configured, endpoint or _DEFAULT_ENDPOINT):
        yield _RECEIVER.fail(
            "the exporter otlp delivers to the address at which this run receives",
            "Name another port in OTEL_ROLLOUT_RECEIVE, or the Collector in OTEL_EXPORTER_OTLP_ENDPOINT.",
        )
        return
    try:
        check_address(configured)
    except ListenError as error:
        yield _RECEIVER.fail(str(error), "Until then nothing is received.")
        return
    try:
        check_free(configured)
    except ListenError as error:
        yield _RECEIVER.warn(str(error), "While a run receives there, nothing is wrong.")
        return
    if endpoint:
        found = "OTEL_EXPORTER_OTLP_ENDPOINT is set: child processes send their spans there, not to the run"
        yield _RECEIVER.warn(found, "Unset it, or unset OTEL_ROLLOUT_RECEIVE.")
        return
    yield _RECEIVER.ok("can listen; child processes learn its address by child_environment()")


def _is_at(configured: settings.Settings, endpoint: str) -> bool:
    """Return whether an endpoint is the receiver's address."""
    host, port = split_address(configured.receive)
    try:
        found = urlsplit(endpoint)
        return found.port == port and (found.hostname == host or found.hostname in _LOOPBACK)
    except ValueError:  # no URL: the exporter's check says so
        return False
