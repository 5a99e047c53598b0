"""Every node of a Ray cluster: a probe on each, and how its answer compares with the driver."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from otel_rollout import configuration, settings
from otel_rollout.base.environment import PREFIXES
from otel_rollout.doctor import checks, variables
from otel_rollout.doctor.probe import make_clock, make_probe
from otel_rollout.doctor.report import Finding, Row, Verdict

OLDEST_RAY: Final = (2, 41)
CLUSTER: Final = "cluster"
MAX_SKEW: Final = 1.0
"""Seconds between clocks from which on spans of one trajectory seem to come before their parents."""
_PROBE_TIMEOUT: Final = 120.0
"""Seconds; a busy node starts a worker first, and that imports exporters."""
_CLOCK_TIMEOUT: Final = 20.0
_CLOCK_READINGS: Final = 3
_CONNECT_TIMEOUT: Final = 5.0
_HOOK: Final = "RAY_RUNTIME_ENV_HOOK"
_HOOK_FUNCTION: Final = "otel_rollout.ray.runtime_env_hook"


@dataclass(frozen=True)
class Node:
    """A node that is alive."""

    id: str
    address: str

    @property
    def shown(self) -> str:
        """What to call it; several nodes may share an address."""
        return f"node {self.address} ({self.id[:8]})"


def examine(address: str, environ: Mapping[str, str], driver: str) -> list[Row]:
    """Check a cluster and each of its nodes.

    Connects as a program without changes to it would, so that what workers get is what they would get then,
    and disconnects. Uses the connection there is if this process has one.

    Args:
        address: as for ``ray.init``.
        environ: the driver's environment.
        driver: what the driver's machine is called.
    """
    environ = dict(environ)  # Ray, and the hook it may call, write to it
    try:
        import ray
    except ImportError as error:
        advice = f"{sys.executable} -m pip install 'otel-rollout[ray]'"
        return [Row(driver, "ray", Verdict.FAIL, f"Ray cannot be imported: {error}", advice)]
    with contextlib.ExitStack() as stack, contextlib.redirect_stdout(sys.stderr):
        if not ray.is_initialized():
            stack.callback(ray.shutdown)
            try:
                _knock(address)
                ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level="ERROR",
                    namespace="otel-rollout-doctor",
                )
            except Exception as error:  # noqa: BLE001 - Ray has many; each is to be read
                return [_no_connection(error, environ).at(CLUSTER)]
        nodes = [
            Node(node["NodeID"], node["NodeManagerAddress"]) for node in ray.nodes() if node.get("Alive")
        ]
        rows = [finding.at(CLUSTER) for finding in _whole(nodes, ray.__version__, environ)]
        answers = _ask(nodes, environ)
        for node in nodes:
            findings = compared(answers[node.id], environ)
            rows += [finding.at(node.shown) for finding in findings]
            if isinstance(answers[node.id], dict):
                rows.append(_clock(node).at(node.shown))
    return rows


def _knock(address: str) -> None:
    """Say at once that nobody is there, for which Ray takes minutes.

    Raises:
        OSError: nobody is.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT).close()


def _no_connection(error: Exception, environ: Mapping[str, str]) -> Finding:
    found = variables.hide(f"no connection: {type(error).__name__}: {_first_lines(error)}", environ)
    advice = (
        "Name the address of a cluster that runs (`ray start --head` shows it), and use the Python and Ray "
        f"that it runs; this is {sys.executable}."
    )
    return Finding("ray", Verdict.FAIL, found, advice)


def _whole(nodes: Sequence[Node], version: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    found = f"Ray {version}, nodes alive: {len(nodes)}"
    if _version(version) < OLDEST_RAY:
        needed = ".".join(map(str, OLDEST_RAY))
        yield Finding("ray", Verdict.WARN, found, f"Upgrade Ray: {needed} is the oldest that is supported.")
    elif (missing := _missing_name()) is not None:
        advice = (
            "Trajectories do not continue in workers by themselves: put "
            "@otel_rollout.ray.carry_context below @ray.remote."
        )
        yield Finding("ray", Verdict.WARN, f"{found}; this Ray has no {missing}", advice)
    else:
        yield Finding("ray", Verdict.OK, found)
    yield loopback(nodes, environ)


def _missing_name() -> str | None:
    from otel_rollout.propagation import ray_private_api

    try:
        ray_private_api.look_up()
    except ray_private_api.UnsupportedRay as missing:
        return str(missing)
    return None


def _version(text: str) -> tuple[int, ...]:
    """Major and minor number of a version; of one that is none, the newest there can be."""
    try:
        return tuple(map(int, text.split(".")[:2]))
    except ValueError:
        return (sys.maxsize,)


def loopback(nodes: Sequence[Node], environ: Mapping[str, str]) -> Finding:
    """Whether an endpoint is on the driver's loopback, where other machines cannot reach it."""
    configured, _ = configuration.from_environment(environ)
    found = variables.loopback(environ, configured.exporters)
    machines = len({node.address for node in nodes})
    if not found:
        return Finding("loopback", Verdict.OK, "no endpoint is on a loopback address")
    shown = f"a loopback address is in {', '.join(found)}; machines: {machines}"
    if machines < 2:
        return Finding("loopback", Verdict.OK, shown)
    why = (
        "Each node delivers for itself, and on each that address means the node itself: only what the "
        "server's own machine records arrives. Use an address that all nodes reach, and let the server "
        "listen on it. With a Collector on every node (docs/collector.md) the loopback is right; then each "
        "node's row `endpoint` says that it is reachable."
    )
    return Finding("loopback", Verdict.WARN, shown, why)


def _ask(nodes: Sequence[Node], environ: Mapping[str, str]) -> dict[str, dict[str, Any] | str]:
    """Each node's answer, or why there is none."""
    import ray

    given = variables.relevant(environ)
    probe = ray.remote(num_cpus=0, max_retries=0)(make_probe())
    sent = {
        node.id: probe.options(scheduling_strategy=_there(node)).remote(given, PREFIXES, checks.DISTRIBUTIONS)
        for node in nodes
    }
    if not sent:
        return {}
    done, _ = ray.wait(list(sent.values()), num_returns=len(sent), timeout=_PROBE_TIMEOUT)
    answers: dict[str, dict[str, Any] | str] = {}
    for node_id, reference in sent.items():
        if reference not in done:
            ray.cancel(reference, force=True)
            answers[node_id] = f"no answer within {_PROBE_TIMEOUT:g} s"
            continue
        try:
            answers[node_id] = ray.get(reference)
        except Exception as error:  # noqa: BLE001 - Ray has many; each is to be read
            answers[node_id] = variables.hide(f"{type(error).__name__}: {_first_lines(error)}", environ)
    return answers


def _there(node: Node) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.id, soft=False)


def compared(answer: dict[str, Any] | str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What a node's answer says, beside the driver.

    Args:
        answer: what its probe returned, or why it returned nothing.
        environ: the driver's environment.
    """
    if isinstance(answer, str):
        advice = "Look at the node's logs (`ray logs`): its workers do not start, or something holds them up."
        yield Finding("probe", Verdict.FAIL, answer, advice)
        return
    yield _library(answer, environ)
    yield _python(answer)
    yield _variables(answer, environ)
    for finding in answer["findings"]:
        yield Finding.from_plain(finding)


def _library(answer: Mapping[str, Any], environ: Mapping[str, str]) -> Finding:
    theirs, ours = answer["versions"], checks.versions()
    shown = checks.described_versions(theirs)
    wanted = f"{answer['executable']} -m pip install otel-rollout=={ours.get('otel-rollout', '…')}"
    if answer["problem"] is not None:
        problem = variables.hide(answer["problem"], environ)
        return Finding(
            "library",
            Verdict.FAIL,
            f"otel-rollout cannot be used here ({problem}); {shown}",
            f"Run `{wanted}` there. Until then jobs run, and what this node does is not recorded.",
        )
    unlike = [name for name in ("otel-rollout", "ray") if theirs.get(name) != ours.get(name)]
    if unlike:
        than = ", ".join(f"{name} {ours.get(name, 'absent')}" for name in unlike)
        return Finding("library", Verdict.WARN, f"{shown}; the driver has {than}", f"Run `{wanted}` there.")
    return Finding("library", Verdict.OK, shown)


def _python(answer: Mapping[str, Any]) -> Finding:
    executable, prefix, version = answer["executable"], answer["prefix"], answer["versions"]["Python"]
    ours = checks.versions()["Python"]
    if (prefix, version) == (sys.prefix, ours):
        return Finding("python", Verdict.OK, f"{executable}, the driver's")
    return Finding(
        "python",
        Verdict.WARN,
        f"workers run {executable} (prefix {prefix}, {version}), the driver {sys.executable} "
        f"(prefix {sys.prefix}, {ours})",
        f"What is installed for one is not there for the other. Start Ray with the driver's Python "
        f"(`{sys.prefix}/bin/ray start …` on each node), or the driver with the workers' ({executable}).",
    )


def _variables(answer: Mapping[str, Any], environ: Mapping[str, str]) -> Finding:
    present = [name for name in answer["present"] if name != settings.CONFIG_VARIABLE]
    missing = [name for name in variables.names(environ) if name not in answer["present"]]
    different = [name for name in answer["different"] if name != settings.CONFIG_VARIABLE]
    found = f"present: {', '.join(present) or 'none'}"
    if missing:
        found += f"; missing, which the driver has: {', '.join(missing)}"
    if different:
        found += f"; with another value than the driver's: {', '.join(different)}"
    if not missing and not different:
        return Finding("variables", Verdict.OK, found)
    advice = (
        f"Let programs call otel_rollout.instrument() before ray.init, or set {_HOOK}={_HOOK_FUNCTION}: "
        "workers then get the driver's. "
    )
    if environ.get(_HOOK) == _HOOK_FUNCTION:
        advice = f"{_HOOK} is set, but tracing is off or something (`uv run`) passes it by. "
    return Finding("variables", Verdict.WARN, found, advice + "What follows was checked with the driver's.")


def _clock(node: Node) -> Finding:
    import ray

    clock = ray.remote(num_cpus=0, max_retries=0)(make_clock()).options(scheduling_strategy=_there(node))

    def read() -> float:
        return float(ray.get(clock.remote(), timeout=_CLOCK_TIMEOUT))

    try:
        return skew_finding(*skew(read))
    except Exception as error:  # noqa: BLE001 - Ray has many; each is to be read
        return Finding("clock", Verdict.WARN, f"not read: {type(error).__name__}")


def skew(read: Callable[[], float]) -> tuple[float, float]:
    """How far a distant clock is ahead of ours, and by how much that may be wrong, in seconds.

    Half of the round trip is taken for the way there; of a few readings, the one with the shortest counts.
    """
    readings = []
    for _ in range(_CLOCK_READINGS):
        sent, started = time.time(), time.monotonic()
        theirs = read()
        half = (time.monotonic() - started) / 2
        readings.append((half, theirs - (sent + half)))
    half, ahead = min(readings)
    return ahead, half


def skew_finding(ahead: float, uncertain: float) -> Finding:
    """The verdict on a clock; what a slow answer may explain is not held against it."""
    found = f"{abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} the driver's (± {uncertain:.3f} s)"
    if abs(ahead) - uncertain <= MAX_SKEW:
        return Finding("clock", Verdict.OK, found)
    advice = "Let the nodes keep time (chrony, ntpd): spans will seem to begin before their parents."
    return Finding("clock", Verdict.WARN, found, advice)


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:4])[:600]
