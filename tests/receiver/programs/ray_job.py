"""Let an actor on Ray start an agent that knows nothing of otel_rollout: ``ray_job.py <agent>``."""

import os
import subprocess
import sys

import ray

import otel_rollout
from otel_rollout import rollout_trace_attr


@ray.remote
class Worker:
    """Starts an agent."""

    def run(self, agent: str) -> list[str]:
        """Run the agent in the environment that leads to this node's receiver."""
        variables = otel_rollout.child_environment()
        subprocess.run([sys.executable, agent, "2"], env={**os.environ, **variables}, check=True)
        return sorted(variables)


if __name__ == "__main__":
    otel_rollout.instrument()
    ray.init(num_cpus=1, include_dashboard=False)
    worker = Worker.remote()
    with rollout_trace_attr(step=3, sample_index=7, rollout_n=0):
        print(ray.get(worker.run.remote(sys.argv[1])))
    ray.shutdown()
    print(otel_rollout.shutdown(timeout=60).summary())
