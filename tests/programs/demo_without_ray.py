"""Run the demo's trajectories in this process, without Ray, into a rollout table.

The spans are those of the demo, except the spans of its actors' calls.
"""

from __future__ import annotations

import asyncio
import sys

import otel_rollout
from otel_rollout_demo.driver import Plan, schedule
from otel_rollout_demo.server import InferenceServer, ScriptedServer
from otel_rollout_demo.tools import CalculatorTool
from otel_rollout_demo.worker import AgentLoopWorker


class _Method:
    """A method of an actor handle, called by ``remote``."""

    def __init__(self, function: object) -> None:
        self.remote = function


class _Handle:
    """A server with the interface of its Ray actor handle."""

    def __init__(self, server: InferenceServer) -> None:
        self.generate = _Method(server.generate)


async def roll_out(plan: Plan) -> None:
    """Run every batch of a plan, the trajectories of a batch at once."""
    server = ScriptedServer(plan.seed)
    name = await server.ready()
    for batch in schedule(plan):
        await server.update_weights(batch.rollouts[0].policy_version)
        worker = AgentLoopWorker(_Handle(server), name, None, CalculatorTool())
        await asyncio.gather(*(worker.run_trajectory(rollout) for rollout in batch.rollouts))


def main(uri: str) -> None:
    """Write the table at an address."""
    otel_rollout.configure(
        exporters={"delta": {"uri": uri}}, project_name="otel-rollout-demo", experiment_name="scripted"
    )
    asyncio.run(roll_out(Plan()))
    report = otel_rollout.shutdown(120)
    assert report.lost == report.undelivered == 0, report.summary()


if __name__ == "__main__":
    main(sys.argv[1])
