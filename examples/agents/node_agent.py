"""Rollouts of an agent in JavaScript, which exports its spans itself to the run's receiver.

    pip install '.[otlp,receive]'  # in a checkout
    npm ci --prefix examples/agents/node
    export OTEL_TRACES_EXPORTER=otlp OTEL_ROLLOUT_RECEIVE=true
    python examples/agents/node_agent.py

The agent is a process of its own (``node/agent.mjs``). It joins its trajectory by its environment.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import rollout
from otel_rollout import child_environment, rollout_trace_attr, score

AGENT: Final = Path(__file__).parent / "node" / "agent.mjs"


def trajectory(index: int) -> None:
    """Let the agent answer the question of one row."""
    question, right = rollout.task(index)
    with rollout_trace_attr(step=1, sample_index=index, rollout_n=0) as trace:
        trace.set_input(question)
        environ = {**os.environ, "OPENAI_MODEL": rollout.MODEL, **child_environment()}
        command = ["node", AGENT, question]
        agent = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
        trace.set_output(agent.stdout.strip())
        score("reward", float(right in agent.stdout))


if __name__ == "__main__":
    rollout.run(trajectory)
