"""Let actors on two Ray nodes start agents, and kill one node's receiver: ``two_nodes.py <agent>``."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import otel_rollout
from otel_rollout import child_environment, rollout_trace_attr
from otel_rollout.spool import layout
from tests.ray_start import add_node
from tests.receiver.support import holder_of, json_request, json_span

OTHER = "other"
REQUESTS = 60
SPANS = 100


class Worker:
    """Runs trajectories on its node."""

    def run_agent(self, agent: str, index: int) -> str:
        """Run an agent in a trajectory, and return the address of its receiver."""
        with rollout_trace_attr(step=3, sample_index=index, rollout_n=0):
            variables = child_environment()
            subprocess.run([sys.executable, agent, "2"], env={**os.environ, **variables}, check=True)
        return variables["OTEL_EXPORTER_OTLP_ENDPOINT"]

    def send(self, index: int, progress: str) -> int:
        """Send spans of a trajectory, each request until it is acknowledged; return their number."""
        with rollout_trace_attr(step=4, sample_index=index, rollout_n=0):
            variables = child_environment()
            trace_id = variables["TRACEPARENT"].split("-")[1]
            for number in range(REQUESTS):
                first = 1 + number * SPANS
                spans = [json_span(first + n, traceId=trace_id) for n in range(SPANS)]
                _send(variables, json.dumps(json_request(*spans)).encode())
                Path(progress).write_text(str(number))
        return REQUESTS * SPANS


def _send(variables: dict[str, str], content: bytes) -> None:
    token = variables["OTEL_EXPORTER_OTLP_HEADERS"].partition("%20")[2]
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    request = urllib.request.Request(
        f"{variables['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/traces", content, headers
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 60
    while True:
        try:
            with opener.open(request, timeout=30) as answer:
                assert answer.read() == b"{}"
                return
        except (OSError, HTTPException):  # the receiver has been killed, perhaps within its answer
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _kill_receiver(spool: Path) -> int:
    """Kill the receiver of the one node that records in a spool; return its process id."""
    (node_dir,) = layout.node_directories(spool)
    pid: int = holder_of(node_dir / "receiver.lock")
    os.kill(pid, signal.SIGKILL)
    return pid


def main(agent: str) -> None:
    """Run agents on both nodes, kill one receiver while both receive, and print what happened."""
    otel_rollout.instrument()
    cluster = Cluster()
    add_node(cluster, num_cpus=1, include_dashboard=False)
    machine = {"OTEL_ROLLOUT_NODE": OTHER, "TMPDIR": os.environ["OTHER_TMPDIR"]}  # its own spool
    add_node(cluster, num_cpus=1, resources={OTHER: 1}, env_vars=machine)
    ray.init(address=cluster.address, log_to_driver=False)
    here = ray.remote(Worker).options(num_cpus=1).remote()
    other = ray.remote(Worker).options(num_cpus=0, resources={OTHER: 1}).remote()
    endpoints = ray.get([worker.run_agent.remote(agent, n) for n, worker in enumerate((here, other))])
    progress = Path(os.environ["OTHER_TMPDIR"]) / "progress"
    sending = [worker.send.remote(n, f"{progress}-{n}") for n, worker in enumerate((here, other))]
    spool = Path(os.environ["OTHER_TMPDIR"]) / f"otel-rollout-{os.getuid()}"
    killed = []
    for share in (0.2, 0.6):
        _wait_until_sent(share * REQUESTS, f"{progress}-1", sending)
        killed.append(_kill_receiver(spool))
    acknowledged = ray.get(sending)
    again = ray.get(other.run_agent.remote(agent, 2))
    ray.shutdown()
    cluster.shutdown()
    report = otel_rollout.shutdown()
    happened = {
        "endpoints": endpoints,
        "again": again,
        "killed": killed,
        "acknowledged": acknowledged,
        "lost": report.lost,
        "nodes": report.directory.split(", "),
    }
    print(f"\nFOUND {json.dumps(happened)}\n", end="", flush=True)


def _wait_until_sent(requests: float, progress: str, sending: list[ray.ObjectRef[int]]) -> None:
    """Wait until the worker has written the number of a request, or has failed."""
    while not (found := _read(progress)) or int(found) < requests:
        ended, _ = ray.wait(sending, timeout=0.02)
        ray.get(ended)  # a failure would be waited for without an end


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    main(sys.argv[1])
