"""Rollouts on Ray with vLLM's AsyncLLM in an actor, as verl uses it: waiting is told from computing.

    OTEL_TRACES_EXPORTER=mlflow MLFLOW_TRACKING_URI=sqlite:///mlflow.db python examples/vllm_on_ray.py MODEL

MODEL is the name or the folder of any small model. Below each model call the trace has the engine's request,
and below that queue, prefill and decode. No line of the engine's actor is about tracing.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import ray

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op

SIBLINGS, TURNS = 2, 2
PROMPTS = ["Count to five.", "Name a colour."]


@ray.remote(max_concurrency=1000)
class EngineServer:
    """An engine that answers many requests at once.

    Args:
        model: name or folder of the model. arguments: further arguments of the engine. Its times are known
        only with its log statistics, which verl
            and ``LLM`` switch off by default.
    """

    def __init__(self, model: str, **arguments: Any) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        given = {"disable_log_stats": False, "enforce_eager": True, "max_model_len": 1024, **arguments}
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **given))

    async def generate(self, prompt_ids: list[int], sampling: dict[str, Any], request_id: str) -> list[int]:
        """Return the token ids of an answer."""
        from vllm import SamplingParams, TokensPrompt

        prompt, params = TokensPrompt(prompt_token_ids=prompt_ids), SamplingParams(**sampling)
        async for output in self.engine.generate(prompt, params, request_id):
            final = output
        return list(final.outputs[0].token_ids)


@rollout_trace_op(kind="LLM")
async def generate(
    engine: Any, prompt_ids: list[int], sampling: dict[str, Any], request_id: str
) -> list[int]:
    """Call the model: this operation's span gets the engine's request as its child."""
    answer: list[int] = await engine.generate.remote(prompt_ids, sampling, request_id)
    return answer


async def rollout(engine: Any, tokenizer: Any, row: int, sibling: int) -> None:
    """Let the model speak in turns, and give it a reward: the share of tokens that differ."""
    with rollout_trace_attr(step=1, sample_index=row, rollout_n=sibling):
        context = tokenizer.encode(PROMPTS[row])
        for turn in range(TURNS):
            sampling = {"max_tokens": 16, "temperature": 1.0, "seed": sibling}
            answer = await generate(engine, context, sampling, f"{row}-{sibling}-{turn}")
            context = [*context, *answer, *tokenizer.encode(" Go on.")]
        otel_rollout.score("reward", len(set(context)) / len(context))


async def rollouts(engine: Any, tokenizer: Any) -> None:
    """Run all rollouts at once."""
    rows = [(row, sibling) for row in range(len(PROMPTS)) for sibling in range(SIBLINGS)]
    await asyncio.gather(*(rollout(engine, tokenizer, *row) for row in rows))


def main(model: str) -> None:
    """Start Ray and the engine, and run the rollouts."""
    from transformers import AutoTokenizer

    otel_rollout.instrument()
    ray.init()
    engine = EngineServer.remote(model)  # with a GPU: EngineServer.options(num_gpus=1).remote(model)
    asyncio.run(rollouts(engine, AutoTokenizer.from_pretrained(model)))
    ray.kill(engine)
    ray.shutdown()
    print(otel_rollout.shutdown())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Usage: python examples/vllm_on_ray.py MODEL")
    main(sys.argv[1])
