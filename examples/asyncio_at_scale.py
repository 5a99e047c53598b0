"""Run hundreds of trajectories at once in one asyncio loop.

Blocking work runs in a thread pool.

    pip install '.[mlflow-local]'    # in a checkout
    export OTEL_TRACES_EXPORTER=mlflow MLFLOW_TRACKING_URI=sqlite:///mlflow.db
    python examples/asyncio_at_scale.py 512

Every task has its own trajectory. ``instrument()`` continues the trajectory in ``run_in_executor``, whose
threads do not have the caller's context.
"""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from otel_rollout.base import semconv

TURNS = 4
INFERENCE_SECONDS = 0.05
GROUP = 8


@rollout_trace_op(kind=semconv.KIND_LLM)
async def generate(prompt: str) -> str:
    """Generate a turn, in place of a call of an inference server."""
    await asyncio.sleep(INFERENCE_SECONDS)
    return prompt + " and so on"


@rollout_trace_op(kind=semconv.KIND_EVALUATOR)
def grade(text: str) -> float:
    """Grade an answer, in place of blocking work such as tests in a sandbox."""
    return len(text) / 100


async def trajectory(index: int, pool: ThreadPoolExecutor) -> float:
    """Run one trajectory: its turns, then the reward."""
    async with rollout_trace_attr(step=1, sample_index=index // GROUP, rollout_n=index % GROUP):
        text = f"question {index}"
        for _ in range(TURNS):
            text = await generate(text)
        reward = await asyncio.get_running_loop().run_in_executor(pool, grade, text)
        score("reward", reward)
        return reward


async def rollout(count: int) -> None:
    """Run all trajectories at once."""
    with ThreadPoolExecutor(4) as pool:
        started = time.perf_counter()
        rewards = await asyncio.gather(*(trajectory(index, pool) for index in range(count)))
    seconds = time.perf_counter() - started
    print(f"{count} trajectories in {seconds:.1f} s, mean reward {sum(rewards) / count:.2f}")


def main(count: int) -> None:
    """Run the rollout, and wait for delivery."""
    otel_rollout.instrument()
    asyncio.run(rollout(count))
    print(otel_rollout.shutdown().summary())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 512)
