"""Give a child process the variables, or an agent the key, with which its spans join the current trajectory.

The variables are standard, so the child may be in any language: ``TRACEPARENT`` names the span above, and
``OTEL_EXPORTER_OTLP_…`` the run's receiver on this machine. This process's own environment stays as it is:
the forwarder and the application's OpenTelemetry SDK read the same variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from otel_rollout.base.environment import marked, without_receiver
from otel_rollout.base.errors import internal_errors, warn_once
from otel_rollout.base.given import reading, text_given
from otel_rollout.base.trajectory_key import signed
from otel_rollout.base.waits import waits
from otel_rollout.record import runtime
from otel_rollout.record.launch import launcher
from otel_rollout.record.propagation import carrier
from otel_rollout.spool.receiver_files import ReceiverAddress

_PROTOCOL: Final = "http/protobuf"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_NOT_RECEIVED: Final = {
    "OTEL_METRICS_EXPORTER": "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_LOGS_EXPORTER": "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
}
"""Variables of signals that the receiver does not take: the exporter → its endpoint."""
_TRACEPARENT: Final = {"traceparent": "TRACEPARENT", "tracestate": "TRACESTATE"}
_NOT_RECORDED: Final = "00-{}-{}-00"
_OUTSIDE: Final = (
    "trajectory_key() was called outside a trajectory, for example in a thread that does not carry the "
    "context, so the agent is not recorded"
)


def child_environment() -> dict[str, str]:
    """Return variables for a child process; see :func:`otel_rollout.child_environment`. Never raises."""
    found: dict[str, str] = {}
    with internal_errors("making the environment of a child process"):
        carried = carrier.inject_span() or {}
        found |= {_TRACEPARENT[name]: value for name, value in carried.items() if name in _TRACEPARENT}
        address = _receiver()
        if address is not None:
            found |= marked(_variables(address, without_receiver(os.environ)))
    return found


def trajectory_key(secret: str) -> str:
    """Return the key of the current trajectory; see :func:`otel_rollout.trajectory_key`. Never raises."""
    traceparent = None
    with internal_errors("making the key of a trajectory"):
        traceparent = (carrier.inject_span() or {}).get("traceparent")
        if traceparent is None and runtime.current() is not None:
            warn_once(_OUTSIDE)
    if traceparent is None:  # the agent runs also without tracing
        traceparent = _NOT_RECORDED.format(os.urandom(16).hex(), os.urandom(8).hex())
    known = ""  # no proxy accepts a key that was made with it
    with reading("secret=", "trajectory_key() made a key that the proxy refuses"):
        known = text_given(secret)
    return signed(traceparent, known)


def _receiver() -> ReceiverAddress | None:
    """Return the address of this machine's receiver; None without one, or if the user names another."""
    active = runtime.current()
    if active is None or not active.settings.receive:
        return None
    environ = without_receiver(os.environ)
    given = next((name for name in _ENDPOINTS if environ.get(name, "").strip()), None)
    if given is not None:
        warn_once(f"{given} is set, so child processes send their spans there, and not to the run's receiver")
        return None
    address = launcher.wait_for_receiver(active.node_dir, active.settings, waits().receiver_listens)
    if address is None:
        why = launcher.receiver_problem(active.node_dir) or "it does not listen yet"
        warn_once(f"child processes get no address of the run's receiver: {why}")
    return address


def _variables(address: ReceiverAddress, environ: Mapping[str, str]) -> dict[str, str]:
    found = {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": address.endpoint,
        "OTEL_EXPORTER_OTLP_HEADERS": address.headers,
        "OTEL_EXPORTER_OTLP_PROTOCOL": _PROTOCOL,
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": _PROTOCOL,  # the only one that vLLM reads
    }
    for exporter, endpoint in _NOT_RECEIVED.items():
        if not (environ.get(exporter) or environ.get(endpoint)):
            found[exporter] = "none"
    return found
