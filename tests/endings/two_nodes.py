"""Run a job on two Ray nodes, and print the counts of the whole job.

Usage: ``python -m tests.endings.two_nodes``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import otel_rollout
from tests.endings.job import Worker
from tests.ray_start import add_node


def main() -> None:
    """Record on both nodes, end Ray, and print the delivery report."""
    otel_rollout.instrument()
    cluster = Cluster()
    add_node(cluster, num_cpus=1, include_dashboard=False)
    other_machine = {"OTEL_ROLLOUT_NODE": "other", "TMPDIR": os.environ["OTHER_TMPDIR"]}  # its own spool
    add_node(cluster, num_cpus=1, resources={"other": 1}, env_vars=other_machine)
    ray.init(address=cluster.address, log_to_driver=False)
    here = ray.remote(Worker).options(num_cpus=1).remote()
    other = ray.remote(Worker).options(num_cpus=0, resources={"other": 1}).remote()
    ended = sum(ray.get([worker.trajectories.remote(3, 10) for worker in (here, other)]))
    if blocked := os.environ.get("BLOCK"):
        Path(blocked).touch()  # a file in place of a directory: copying fails
    ray.get(other.publish.remote(os.environ.get("TRACKERS_RUN", "run-7")))
    ray.shutdown()
    cluster.shutdown()
    report = otel_rollout.shutdown()
    account = {
        "ended": ended,
        "recorded": report.recorded,
        "lost": report.lost,
        "exporters": {n: [e.delivered, e.pending, e.problem] for n, e in report.exporters.items()},
        "places": report.directory.split(", "),
        "steps": {key.step: count.delivered for key, count in report.by_step.items()},
    }
    print(f"\nACCOUNT {json.dumps(account)}\n", end="", flush=True)


if __name__ == "__main__":
    main()
