"""Run the example's engine in actors on Ray: ``on_ray.py MODEL ACCOUNT``.

The first engine has log statistics, and is killed at the end. The second one traces to the run's receiver.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import ray
from transformers import AutoTokenizer

import otel_rollout
import vllm_on_ray
from otel_rollout import rollout_trace_attr
from tests.ray_start import start_ray

LONG = {"max_tokens": 300, "temperature": 0.0, "ignore_eos": True}
SHORT = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
PROMPT = [10, 11, 12, 13]


@ray.remote(max_concurrency=1000)
class Server(vllm_on_ray.EngineServer.__ray_metadata__.modified_class):
    """The example's actor, which also streams, gives up, and dies."""

    def __init__(self, model: str, traces: bool) -> None:
        arguments: dict[str, Any] = {"dtype": "float32", "distributed_executor_backend": "uni"}
        if traces:
            os.environ.update(otel_rollout.child_environment())
            os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
            endpoint = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
            arguments["otlp_traces_endpoint"] = f"{endpoint}/v1/traces"
        super().__init__(model, **arguments)
        self.metrics: dict[str, Any] = {}

    async def stream(self, sampling: dict[str, Any], request_id: str, kind: str) -> dict[str, Any]:
        """Return the tokens of a streamed answer, and what the engine says of its times."""
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(**sampling, output_kind=RequestOutputKind[kind])
        tokens: dict[int, list[int]] = {}
        chunks = 0
        async for output in self.engine.generate(TokensPrompt(prompt_token_ids=PROMPT), params, request_id):
            chunks += 1
            for answer in output.outputs:
                before = tokens.get(answer.index, []) if kind == "DELTA" else []
                tokens[answer.index] = [*before, *answer.token_ids]
        metrics = None if output.metrics is None else vars(output.metrics)
        return {"chunks": chunks, "tokens": [tokens[index] for index in sorted(tokens)], "metrics": metrics}

    async def abandon(self, request_id: str) -> int:
        """Close a stream after three chunks."""
        from vllm import SamplingParams, TokensPrompt

        stream = self.engine.generate(
            TokensPrompt(prompt_token_ids=PROMPT), SamplingParams(**LONG), request_id
        )
        chunks = 0
        async for _ in stream:
            chunks += 1
            if chunks == 3:
                break
        await stream.aclose()
        return chunks

    async def cancel(self, request_id: str) -> str:
        """Cancel the task that waits for an answer."""
        task = asyncio.create_task(self.generate(PROMPT, LONG, request_id))
        while not self.engine.output_processor.has_unfinished_requests():
            await asyncio.sleep(0.01)
        task.cancel()
        return repr((await asyncio.gather(task, return_exceptions=True))[0])

    async def pause(self, request_id: str) -> int:
        """Pause the engine while it answers, as verl does to update weights; return the number of tokens."""
        task = asyncio.create_task(self.generate(PROMPT, LONG, request_id))
        while not any(state.detokenizer.num_output_tokens() for state in self._states()):
            await asyncio.sleep(0.01)
        await self.engine.pause_generation(mode="abort")
        await self.engine.resume_generation()
        return len(await task)

    def _states(self) -> list[Any]:
        return list(self.engine.output_processor.request_states.values())

    async def die(self, request_id: str) -> str:
        """Kill the engine's core while it answers, and return the exception that the caller gets."""
        task = asyncio.create_task(self.generate(PROMPT, LONG, request_id))
        while not self.engine.output_processor.has_unfinished_requests():
            await asyncio.sleep(0.01)
        for child in multiprocessing.active_children():
            child.kill()
        return type((await asyncio.gather(task, return_exceptions=True))[0]).__name__

    def facts(self) -> dict[str, Any]:
        """Return which of our modules the actor has, and whether vLLM has seeded its random numbers."""
        from otel_rollout.integrations.vllm import engines

        modules = [name for name in sys.modules if name.startswith("otel_rollout.integrations.vllm")]
        return {"modules": modules, "seeded": engines.was_seeded(0)}


async def first_engine(server: Any, tokenizer: Any) -> dict[str, Any]:
    """Run the example's rollouts, then requests that stream, give up, and die."""
    await vllm_on_ray.rollouts(server, tokenizer)
    found: dict[str, Any] = {"facts": await server.facts.remote()}
    for kind in ("DELTA", "CUMULATIVE", "FINAL_ONLY"):
        with rollout_trace_attr(step=2, name=kind):
            found[kind] = await server.stream.remote(SHORT, kind, kind)
    with rollout_trace_attr(step=2, name="several"):
        several = {**SHORT, "temperature": 1.0, "n": 3, "seed": 1}
        found["several"] = await server.stream.remote(several, "several", "FINAL_ONLY")
    found["outside"] = await server.stream.remote(SHORT, "outside", "DELTA")
    with rollout_trace_attr(step=2, name="unrecorded", trace=False):
        await server.stream.remote(SHORT, "unrecorded", "DELTA")
    for name in ("abandon", "cancel", "pause", "die"):
        with rollout_trace_attr(step=2, name=name):
            found[name] = await getattr(server, name).remote(name)
    return found


async def second_engine(server: Any) -> dict[str, Any]:
    """Make requests to an engine that traces, in trajectories and outside."""

    async def request(name: str) -> Any:
        with rollout_trace_attr(step=3, name=name):
            return await server.stream.remote(SHORT, name, "FINAL_ONLY")

    names = [f"traced {number}" for number in range(6)]
    answers = await asyncio.gather(
        *map(request, names), server.stream.remote(SHORT, "traced outside", "DELTA")
    )
    found: dict[str, Any] = dict(zip(names, answers, strict=False))
    with rollout_trace_attr(step=3, name="traced abandon"):
        await server.abandon.remote("traced abandon")
    with rollout_trace_attr(step=3, name="traced unrecorded", trace=False):
        await server.stream.remote(SHORT, "traced unrecorded", "DELTA")
    return found


def main() -> None:
    """Run both engines, one after the other."""
    model, account = sys.argv[1:3]
    otel_rollout.instrument()
    start_ray(lambda: ray.init(num_cpus=2, include_dashboard=False))
    found: dict[str, Any] = {}
    server = Server.remote(model, traces=False)
    found |= asyncio.run(first_engine(server, AutoTokenizer.from_pretrained(model)))
    ray.kill(server)
    server = Server.remote(model, traces=True)
    found |= asyncio.run(second_engine(server))
    with contextlib.suppress(ray.exceptions.RayActorError):
        ray.get(server.__ray_terminate__.remote())  # vLLM's exporter sends what it still holds
    Path(account).write_text(json.dumps(found))
    ray.shutdown()
    print(otel_rollout.shutdown(timeout=60).summary())


if __name__ == "__main__":
    main()
