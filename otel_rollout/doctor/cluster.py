"""Probe every node of a Ray cluster, and compare each answer with the driver."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from otel_rollout import settings, settings_reader
from otel_rollout.base.environment import PREFIXES
from otel_rollout.base.waits import waits
from otel_rollout.doctor import checks, libraries, variables
from otel_rollout.doctor.diagnosis import DoctorCheck, DoctorFinding
from otel_rollout.doctor.probe import make_chain_end, make_clock, make_probe
from otel_rollout.record.launch.ray_nodes import on_node

OLDEST_RAY: Final = (2, 41)
"""Oldest supported version of Ray, major and minor number."""
CLUSTER: Final = "cluster"
"""Name, in the column ``where``, of findings about the cluster as a whole."""
MAX_SKEW: Final = 1.0
"""Maximum difference of a node's clock in seconds. With more, spans seem to start before their parents."""
_CLOCK_READINGS: Final = 3
"""Readings of a node's clock; the one with the shortest round trip counts."""


@dataclass(frozen=True)
class Node:
    """A live node of the cluster."""

    id: str
    address: str

    @property
    def shown(self) -> str:
        """The node's address and part of its id, since several nodes may share an address."""
        return f"node {self.address} ({self.id[:8]})"


def examine(address: str, environ: Mapping[str, str], driver: str) -> list[DoctorFinding]:
    """Check a cluster and each of its nodes.

    Connect as a program that is traced by variables connects. So workers get the same environment as that
    program's workers. Disconnect afterwards. Reuse an existing connection of this process.

    Args:
        address: address as for ``ray.init``.
        environ: the driver's environment.
        driver: name of the driver's machine in the column ``where``.
    """
    environ = dict(environ)  # a copy: Ray and its runtime_env hook write to os.environ
    try:
        import ray
    except ImportError as error:
        advice = f"Install Ray: {sys.executable} -m pip install 'otel-rollout[ray]'"
        return [DoctorCheck("ray").fail(f"Ray cannot be imported: {error}", advice).at(driver)]
    with contextlib.ExitStack() as stack, contextlib.redirect_stdout(sys.stderr):
        if not ray.is_initialized():
            stack.callback(ray.shutdown)
            try:
                _check_port(address)
                ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level="ERROR",
                    namespace="otel-rollout-doctor",
                )
            except Exception as error:  # noqa: BLE001 - Ray raises errors of many types
                return [_no_connection(error, environ).at(CLUSTER)]
        nodes = [
            Node(node["NodeID"], node["NodeManagerAddress"]) for node in ray.nodes() if node.get("Alive")
        ]
        rows = [finding.at(CLUSTER) for finding in _check_cluster(nodes, ray.__version__, environ)]
        answers = _probe(nodes, environ)
        for node in nodes:
            answer = answers[node.id]
            rows += [finding.at(node.shown) for finding in compare_with_driver(answer, environ)]
            if isinstance(answer, dict):
                rows.append(_check_clock(node).at(node.shown))
                if settings_reader.is_enabled(environ) and answer["problem"] is None:
                    rows.append(_check_chain(node, environ).at(node.shown))
    return rows


def _check_port(address: str) -> None:
    """Connect to the cluster's port once; Ray would try a closed port for minutes.

    Raises:
        OSError: nothing listens there.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=waits().connect).close()


def _no_connection(error: Exception, environ: Mapping[str, str]) -> DoctorFinding:
    found = variables.mask(f"no connection: {type(error).__name__}: {_first_lines(error)}", environ)
    advice = (
        "Give the address of a running cluster (`ray start --head` shows it), and run this command with the "
        f"cluster's versions of Python and Ray; this Python is {sys.executable}."
    )
    return DoctorCheck("ray").fail(found, advice)


def _check_cluster(
    nodes: Sequence[Node], version: str, environ: Mapping[str, str]
) -> Iterator[DoctorFinding]:
    """Check the cluster as a whole: Ray's version and loopback addresses."""
    found = f"Ray {version}, nodes alive: {len(nodes)}"
    if _version(version) < OLDEST_RAY:
        needed = ".".join(map(str, OLDEST_RAY))
        yield DoctorCheck("ray").warn(found, f"Upgrade Ray: the oldest supported version is {needed}.")
    elif (missing := _missing_name()) is not None:
        advice = (
            "With this Ray, trajectories do not continue in workers by themselves. Put "
            "@otel_rollout.ray.carry_context below each @ray.remote."
        )
        yield DoctorCheck("ray").warn(f"{found}; this Ray has no {missing}", advice)
    else:
        yield DoctorCheck("ray").ok(found)
    yield check_loopback(nodes, environ)


def _missing_name() -> str | None:
    """Return the first name that propagation needs and this Ray lacks, or None."""
    from otel_rollout.record.propagation import ray_private_api

    try:
        ray_private_api.look_up()
    except ray_private_api.UnsupportedRay as missing:
        return str(missing)
    return None


def _version(text: str) -> tuple[int, ...]:
    """Return major and minor version; text that is no version counts as the newest."""
    try:
        return tuple(map(int, text.split(".")[:2]))
    except ValueError:
        return (sys.maxsize,)


def check_loopback(nodes: Sequence[Node], environ: Mapping[str, str]) -> DoctorFinding:
    """Check for endpoints on a loopback address, which other machines cannot reach."""
    configured, _ = settings_reader.from_environment(environ)
    found = variables.on_loopback(environ, configured.exporters)
    machines = len({node.address for node in nodes})
    if not found:
        return DoctorCheck("loopback").ok("no endpoint is on a loopback address")
    shown = f"a loopback address is in {', '.join(found)}; machines: {machines}"
    if machines < 2:
        return DoctorCheck("loopback").ok(shown)
    advice = (
        "Each node delivers its own spans, and on each node a loopback address means that node: only spans "
        "recorded on the server's machine arrive. Use an address that all nodes reach, and let the server "
        "listen on it. If every node has a Collector (docs/collector.md), a loopback address is right: the "
        "row `endpoint` of each node then says that it is reachable."
    )
    return DoctorCheck("loopback").warn(shown, advice)


def _probe(nodes: Sequence[Node], environ: Mapping[str, str]) -> dict[str, dict[str, Any] | str]:
    """Probe each node; return node id → answer, or the reason for a missing answer."""
    import ray

    given = variables.of_tracing(environ)
    distributions = (*checks.DISTRIBUTIONS, *_chosen_by_driver(environ))
    sent = {
        node.id: on_node(ray, node.id, make_probe(), max_retries=0).remote(given, PREFIXES, distributions)
        for node in nodes
    }
    if not sent:
        return {}
    done, _ = ray.wait(list(sent.values()), num_returns=len(sent), timeout=waits().node_probe)
    answers: dict[str, dict[str, Any] | str] = {}
    for node_id, reference in sent.items():
        if reference not in done:
            ray.cancel(reference, force=True)
            answers[node_id] = f"no answer within {waits().node_probe:g} s"
            continue
        try:
            answers[node_id] = ray.get(reference)
        except Exception as error:  # noqa: BLE001 - Ray raises errors of many types
            answers[node_id] = variables.mask(f"{type(error).__name__}: {_first_lines(error)}", environ)
    return answers


def compare_with_driver(answer: dict[str, Any] | str, environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Compare a node's answer with the driver.

    Args:
        answer: the probe's result, or the reason for a missing result.
        environ: the driver's environment.
    """
    if isinstance(answer, str):
        advice = "Look at the node's logs (`ray logs`): its workers do not start, or are held up."
        yield DoctorCheck("probe").fail(answer, advice)
        return
    yield _compare_library(answer, environ)
    yield _compare_python(answer)
    yield _compare_variables(answer, environ)
    yield from _compare_instrumentors(answer, environ)
    for finding in answer["findings"]:
        yield DoctorFinding.from_plain(finding)


def _chosen_by_driver(environ: Mapping[str, str]) -> dict[str, str]:
    configured, _ = settings_reader.from_environment(environ)
    return libraries.versions_of_chosen(configured)


def _compare_instrumentors(answer: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Compare the chosen instrumentors and their libraries with the driver's."""
    theirs, ours = answer["versions"], _chosen_by_driver(environ)
    different = {name: version for name, version in ours.items() if theirs.get(name) != version}
    if different and answer["problem"] is None:
        shown = ", ".join(
            f"{name} {theirs.get(name, 'is missing')} (driver: {different[name]})" for name in different
        )
        packages = " ".join(f"{name}=={version}" for name, version in different.items())
        advice = (
            f"Run `{answer['executable']} -m pip install {packages}` there: spans of these libraries differ."
        )
        yield libraries.CHECK.warn(shown, advice)


def _compare_library(answer: Mapping[str, Any], environ: Mapping[str, str]) -> DoctorFinding:
    theirs, ours = answer["versions"], checks.versions()
    shown = checks.described_versions(theirs)
    install = f"{answer['executable']} -m pip install otel-rollout=={ours.get('otel-rollout', '…')}"
    if answer["problem"] is not None:
        problem = variables.mask(answer["problem"], environ)
        return DoctorCheck("library").fail(
            f"otel-rollout cannot be used on this node ({problem}); {shown}",
            f"Run `{install}` there. Until then jobs run, but nothing is recorded on this node.",
        )
    different = [name for name in ("otel-rollout", "ray") if theirs.get(name) != ours.get(name)]
    if different:
        drivers = ", ".join(f"{name} {ours.get(name, 'absent')}" for name in different)
        found = f"{shown}; the driver has {drivers}"
        return DoctorCheck("library").warn(found, f"Run `{install}` there.")
    return DoctorCheck("library").ok(shown)


def _compare_python(answer: Mapping[str, Any]) -> DoctorFinding:
    executable, prefix, version = answer["executable"], answer["prefix"], answer["versions"]["Python"]
    ours = checks.versions()["Python"]
    if (prefix, version) == (sys.prefix, ours):
        return DoctorCheck("python").ok(f"{executable}, the driver's")
    return DoctorCheck("python").warn(
        f"workers run {executable} (prefix {prefix}, {version}), the driver {sys.executable} "
        f"(prefix {sys.prefix}, {ours})",
        f"Packages installed for one Python are missing in the other. Start Ray with the driver's Python "
        f"(`{sys.prefix}/bin/ray start …` on each node), or the driver with the workers' ({executable}).",
    )


def _compare_variables(answer: Mapping[str, Any], environ: Mapping[str, str]) -> DoctorFinding:
    present = [name for name in answer["present"] if name != settings.CONFIG_VARIABLE]
    missing = [name for name in variables.names(environ) if name not in answer["present"]]
    different = [name for name in answer["different"] if name != settings.CONFIG_VARIABLE]
    found = f"present: {', '.join(present) or 'none'}"
    if missing:
        found += f"; missing, which the driver has: {', '.join(missing)}"
    if different:
        found += f"; with another value than the driver's: {', '.join(different)}"
    if not missing and not different:
        return DoctorCheck("variables").ok(found)
    advice = (
        "Workers get the driver's variables if OTEL_TRACES_EXPORTER is set before ray.init, or "
        "otel_rollout.instrument() is called before it (docs/recording.md). The node's other checks ran with "
        "the driver's variables."
    )
    return DoctorCheck("variables").warn(found, advice)


def _check_chain(node: Node, environ: Mapping[str, str]) -> DoctorFinding:
    """Call an actor on a node inside a trace that is not recorded, and ask which trace the actor sees."""
    import ray
    from opentelemetry import context, trace

    trace_id = secrets.randbits(127) + 1
    above = trace.NonRecordingSpan(trace.SpanContext(trace_id, secrets.randbits(63) + 1, is_remote=False))
    actor = on_node(ray, node.id, make_chain_end()).remote()
    token = context.attach(trace.set_span_in_context(above))
    try:
        reference = actor.trace_id.remote()
    finally:
        context.detach(token)
    try:
        seen = ray.get(reference, timeout=waits().node_probe)
    except Exception as error:  # noqa: BLE001 - Ray raises errors of many types
        return DoctorCheck("chain").warn(f"an actor did not answer: {type(error).__name__}")
    if seen == trace_id:
        return DoctorCheck("chain").ok("a call to an actor stays in the caller's trace")
    disabled = environ.get("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "")
    if "ray" in map(str.strip, disabled.split(",")):
        advice = "Take `ray` out of the variable, or call otel_rollout.instrument() in the program."
        found = f"a call leaves the caller's trace: OTEL_PYTHON_DISABLED_INSTRUMENTATIONS is {disabled}"
        return DoctorCheck("chain").warn(found, advice)
    return DoctorCheck("chain").fail(
        "a call to an actor leaves the caller's trace: no trajectory is whole",
        "Set OTEL_TRACES_EXPORTER before Python starts, or call otel_rollout.instrument() before ray.init; "
        "docs/recording.md says what keeps Ray from being traced.",
    )


def _check_clock(node: Node) -> DoctorFinding:
    import ray

    clock = on_node(ray, node.id, make_clock(), max_retries=0)

    def read() -> float:
        return float(ray.get(clock.remote(), timeout=waits().node_clock))

    try:
        return skew_finding(*measure_skew(read))
    except Exception as error:  # noqa: BLE001 - Ray raises errors of many types
        return DoctorCheck("clock").warn(f"the node's clock was not read: {type(error).__name__}")


def measure_skew(read: Callable[[], float]) -> tuple[float, float]:
    """Return by how many seconds a node's clock is ahead, and the maximum error.

    A reading counts as taken in the middle of its round trip, so the error is half of the round trip. Of
    several readings, the one with the shortest round trip counts.
    """
    readings = []
    for _ in range(_CLOCK_READINGS):
        sent, start = time.time(), time.monotonic()
        theirs = read()
        half = (time.monotonic() - start) / 2
        readings.append((half, theirs - (sent + half)))
    half, ahead = min(readings)
    return ahead, half


def skew_finding(ahead: float, error: float) -> DoctorFinding:
    """Judge a clock; accept a difference that the measurement's error may explain."""
    found = f"{abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} the driver's (± {error:.3f} s)"
    if abs(ahead) - error <= MAX_SKEW:
        return DoctorCheck("clock").ok(found)
    advice = (
        "Synchronize the nodes' clocks (chrony, ntpd). Until then spans seem to start before their parents."
    )
    return DoctorCheck("clock").warn(found, advice)


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:4])[:600]
