"""Check whether this machine can receive OTLP, if ``OTEL_ROLLOUT_RECEIVE`` asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from otel_rollout.base.environment import without_receiver
from otel_rollout.doctor.diagnosis import DoctorFinding, Verdict
from otel_rollout.record.receiver.listening import ListenError, check_address, check_free, split_address
from otel_rollout.settings import Settings

CHECK: Final = "receiver"
_NEEDED: Final = ("uvicorn", "opentelemetry.proto", "google.rpc")
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DEFAULT_ENDPOINT: Final = "http://localhost:4318"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def check_receiver(environ: Mapping[str, str], configured: Settings) -> Iterator[DoctorFinding]:
    """Check what the receiver imports, its address, and where the variables send other programs' spans."""
    if not configured.receive:
        return
    missing = [name for name in _NEEDED if not _is_importable(name)]
    if missing:
        advice = "Install it with: pip install 'otel-rollout[receive]'"
        yield DoctorFinding(CHECK, Verdict.FAIL, f"cannot start without {', '.join(missing)}", advice)
        return
    endpoint = next(
        filter(None, (without_receiver(environ).get(name, "").strip() for name in _ENDPOINTS)), ""
    )
    if "otlp" in configured.exporters and _is_at(configured, endpoint or _DEFAULT_ENDPOINT):
        yield DoctorFinding(
            CHECK,
            Verdict.FAIL,
            "the exporter otlp delivers to the address at which this run receives",
            "Name another port in OTEL_ROLLOUT_RECEIVE, or the Collector in OTEL_EXPORTER_OTLP_ENDPOINT.",
        )
        return
    try:
        check_address(configured)
    except ListenError as error:
        yield DoctorFinding(CHECK, Verdict.FAIL, str(error), "Until then nothing is received.")
        return
    try:
        check_free(configured)
    except ListenError as error:
        yield DoctorFinding(CHECK, Verdict.WARN, str(error), "This is right while a run receives there.")
        return
    if endpoint:
        found = "OTEL_EXPORTER_OTLP_ENDPOINT is set: child processes send their spans there, not to the run"
        yield DoctorFinding(CHECK, Verdict.WARN, found, "Unset it, or unset OTEL_ROLLOUT_RECEIVE.")
        return
    yield DoctorFinding(
        CHECK, Verdict.OK, "can listen; child processes learn its address by child_environment()"
    )


def _is_importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package above it
        return False


def _is_at(configured: Settings, endpoint: str) -> bool:
    """Return whether an endpoint is the receiver's address."""
    host, port = split_address(configured.receive)
    try:
        found = urlsplit(endpoint)
        return found.port == port and (found.hostname == host or found.hostname in _LOOPBACK)
    except ValueError:  # no URL: the exporter's check says so
        return False
