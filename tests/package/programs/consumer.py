"""Use the public names, for type checkers to look at."""

from __future__ import annotations

from collections.abc import AsyncIterator

import otel_rollout
from otel_rollout import Report, rollout_trace_attr, rollout_trace_op, score, score_batch


@rollout_trace_op
def add(a: int, b: int) -> str:
    """Return a sum as text."""
    return str(a + b)


@rollout_trace_op(kind="LLM")
async def generate(prompt: str, *, temperature: float = 1.0) -> list[str]:
    """Return words."""
    return [prompt, str(temperature)]


class Agent:
    """Uses tools."""

    @rollout_trace_op(kind="TOOL")
    async def stream(self, question: str) -> AsyncIterator[str]:
        """Yield words."""
        for word in await generate(question, temperature=0.5):
            yield word


async def roll_out() -> Report:
    """Roll out a trajectory."""
    with rollout_trace_attr(step=1, sample_index="row", rollout_n=0, validate=False) as trajectory:
        words = [word async for word in Agent().stream(add(1, 2))]
        score("reward", float(len(words)))
    score("late", True, trajectory=trajectory.id)
    score_batch({"advantage": [0.5]}, step=[1], sample_index=["row"], rollout_n=[0])
    child: dict[str, str] = otel_rollout.child_environment()
    print(child)
    otel_rollout.configure("otlp", project_name="consumer")
    return otel_rollout.shutdown(1.0)
