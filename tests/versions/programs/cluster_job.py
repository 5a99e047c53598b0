"""Run a job on two Ray nodes that have different versions of otel-rollout; print its counts.

Usage: ``python -m tests.versions.programs.cluster_job``. The first node has the driver's version;
``OTHER_PYTHONPATH`` finds the version of the other node's workers.
"""

from __future__ import annotations

import json
import os
from typing import Any

import ray
from ray.cluster_utils import Cluster

import otel_rollout
from tests.ray_start import add_node


class Worker:
    """Records with the version of its node."""

    def version(self) -> str:
        """Return where this process's otel-rollout is."""
        import otel_rollout

        return str(otel_rollout.__file__)

    def trajectory(self, sample_index: int) -> str:
        """Record a trajectory with an operation and a score."""
        from otel_rollout import rollout_trace_attr, rollout_trace_op, score

        with rollout_trace_attr(sample_index=sample_index, step=1) as trajectory:
            rollout_trace_op(name="tool")(str.upper)("x")
            score("reward", 0.5)
        return str(trajectory.trace_id)

    def tool(self, text: str) -> str:
        """Record an operation of the caller's trajectory."""
        from otel_rollout import rollout_trace_op

        return str(rollout_trace_op(name="remote tool")(str.upper)(text))


def main() -> None:
    """Record on both nodes and across them, end Ray, and print the delivery report."""
    otel_rollout.configure(
        {"delta": {"uri": os.environ["TABLE"]}}, project_name="versions", shutdown_timeout=60
    )
    otel_rollout.instrument()
    cluster = Cluster()
    add_node(cluster, num_cpus=1, include_dashboard=False)
    other = {
        "OTEL_ROLLOUT_NODE": "other",
        "PYTHONPATH": os.environ["OTHER_PYTHONPATH"],
        "TMPDIR": os.environ["OTHER_TMPDIR"],
    }
    add_node(cluster, num_cpus=1, resources={"other": 1}, env_vars=other)
    ray.init(address=cluster.address)
    workers: list[Any] = [
        ray.remote(Worker).options(num_cpus=1).remote(),
        ray.remote(Worker).options(num_cpus=0, resources={"other": 1}).remote(),
    ]
    versions = ray.get([worker.version.remote() for worker in workers])
    own = ray.get([worker.trajectory.remote(index) for index, worker in enumerate(workers)])
    with otel_rollout.rollout_trace_attr(sample_index=2, step=1) as shared:
        ray.get([worker.tool.remote("x") for worker in workers])
    ray.shutdown()
    cluster.shutdown()
    report = otel_rollout.shutdown()
    said = {
        "versions": [str(otel_rollout.__file__), *versions],
        "own": own,
        "shared": shared.trace_id,
        "recorded": report.recorded,
        "lost": report.lost,
        "delivered": {name: [e.delivered, e.pending, e.problem] for name, e in report.exporters.items()},
    }
    print(f"\nACCOUNT {json.dumps(said)}\n", end="", flush=True)


if __name__ == "__main__":
    main()
