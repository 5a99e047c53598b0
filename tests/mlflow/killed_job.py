"""A job whose workers are killed as they return.

Run as ``python -m tests.mlflow.killed_job ACTORS TRAJECTORIES OPS``.
Prints the ids of the trajectories its workers have ended, and the account.
"""

import json
import sys

import ray

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from tests.ray_start import start_ray


class Worker:
    @rollout_trace_op(kind="TOOL")
    async def step(self, number: int) -> int:
        return number + 1

    async def trajectory(self, index: int, ops: int) -> str:
        async with rollout_trace_attr(sample_index=index, step=index % 2, rollout_n=0) as trajectory:
            for number in range(ops):
                await self.step(number)
            score("reward", float(index))
        assert trajectory.trace_id is not None
        return trajectory.trace_id


def main(actors: int, trajectories: int, ops: int) -> None:
    start_ray(lambda: ray.init("local", num_cpus=actors, include_dashboard=False, log_to_driver=False))
    workers = [ray.remote(Worker).remote() for _ in range(actors)]
    ids = ray.get([workers[n % actors].trajectory.remote(n, ops) for n in range(actors * trajectories)])
    for worker in workers:
        ray.kill(worker)
    ray.shutdown()
    report = otel_rollout.shutdown(60)
    print(json.dumps({"ids": ids, "recorded": report.recorded, "lost": report.lost, "open": report.open}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
