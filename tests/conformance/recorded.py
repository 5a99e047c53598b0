"""Record a hard rollout: ``python -m tests.conformance.recorded``."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score


class AgentLoop:
    @rollout_trace_op(kind="LLM")
    async def generate(self, messages: list[dict[str, str]], temperature: float = 0.7) -> dict[str, object]:
        await asyncio.sleep(0.002)
        span = trace.get_current_span()
        span.set_attribute("gen_ai.request.model", "qwen")
        span.set_attribute("gen_ai.usage.output_tokens", 5)
        return {"text": f"{len(messages)} messages", "logprobs": [-0.25, -1.5]}

    @rollout_trace_op(kind="TOOL")
    async def call_tool(self, name: str, expression: str) -> str:
        await asyncio.sleep(0.001 * len(expression))
        if name != "calculator":
            raise LookupError(f"no tool {name!r}")
        return expression

    @rollout_trace_op
    async def slow(self) -> None:
        await asyncio.sleep(60)

    @rollout_trace_op
    async def run(self, question: str, siblings: int = 1) -> dict[str, object]:
        reply = await self.generate([{"role": "user", "content": question}])
        for size in range(siblings):
            await self.call_tool("calculator", "3+4" * size)
        return {"answer": reply["text"], "question": question}


async def trajectories() -> None:
    loop = AgentLoop()
    with rollout_trace_attr(sample_index=1, step=3, rollout_n=0, agent_name="plain") as trajectory:
        await loop.run("What is 3+4?")
        score("reward", 0.5, comment="close")
        score("solved", True)
        score("reward", 0.6, comment="on second thoughts", trajectory=trajectory.id)
        score("step", 7, trajectory=trajectory.id)  # a name of the identity
        score("accepted", True, trajectory=trajectory.id)
        score("refused", False, trajectory=trajectory.id)
        trajectory.set_output({"turns": 1, "solved": "in words"})  # a key with a score's name
        late = otel_context.get_current()
    with rollout_trace_attr(sample_index="row-2", step=3, rollout_n=1):  # concurrent siblings
        await asyncio.gather(*(loop.call_tool("calculator", "+" * n) for n in range(1, 5)))
    with rollout_trace_attr(sample_index=3, step=3, rollout_n=0, validate=True):  # an error that is caught
        await asyncio.gather(loop.call_tool("browser", "x"), return_exceptions=True)
    try:
        with rollout_trace_attr(sample_index=4, step=4, rollout_n=0):  # an error that is not
            await loop.call_tool("browser", "y")
    except LookupError:
        pass
    with rollout_trace_attr(sample_index=5, step=4, rollout_n=0):  # cancellation
        task = asyncio.create_task(loop.slow())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    with rollout_trace_attr(sample_index=6, step=4, rollout_n=0):  # unicode, and what looks like markup
        await loop.run('界 🎲 "quotes" \\ {"not": "JSON"}\n\ttab')
        await loop.run("")
    with rollout_trace_attr(sample_index=7, step=4, rollout_n=0):  # big values
        await loop.run("界x" * 100_000)
    token = otel_context.attach(late)
    score("reward", 0.75)  # given after the trajectory has ended
    score("judge", "good")
    otel_context.detach(token)
    await loop.run("outside any trajectory")


def stream(tokens: int) -> Iterator[str]:
    for token in range(tokens):
        yield f"token {token}"


def guest() -> None:
    """Make spans of the application, by the OpenTelemetry API, inside a trajectory."""
    trace.set_tracer_provider(TracerProvider())
    tracer = trace.get_tracer("application")
    with rollout_trace_attr(sample_index=8, step=5, rollout_n=2):
        with tracer.start_as_current_span("stream") as span:
            span.set_attribute("output.value", "".join(stream(3)))
            with tracer.start_as_current_span("GET /model"):
                pass
        score("reward", 1.0)


if __name__ == "__main__":
    if sys.argv[1:] == ["guest"]:
        guest()
    else:
        asyncio.run(trajectories())
        subprocess.run([sys.executable, "-m", "tests.conformance.recorded", "guest"], check=True)
    otel_rollout.shutdown(30)
