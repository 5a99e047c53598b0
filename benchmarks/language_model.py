"""Measure by how much tracing slows rollout steps of a real language model.

    python -m benchmarks.language_model [--quick] [--device cpu]

Traced and untraced steps alternate. On a GPU the model has the shape of Qwen2-0.5B with random weights;
nothing is downloaded. ``--device cpu`` uses a tiny model, to try the benchmark. Trajectories of several
turns, with a tool call between turns, use one engine in the same process. Their spans are delivered to an
MLflow server meanwhile. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import time
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks import tracers
from benchmarks.tracers import TRACERS, UNTRACED
from otel_rollout import rollout_trace_op

OURS = "otel-rollout → MLflow"


class Size(NamedTuple):
    """Sizes of the model and of a step."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    dtype: str
    trajectories: int
    new_tokens: int


SIZES = {
    "cuda": Size(151_936, 896, 4864, 24, 14, "bfloat16", trajectories=64, new_tokens=96),
    "cpu": Size(4096, 128, 256, 2, 4, "float32", trajectories=8, new_tokens=16),
}
_PAIRS = 12
_TURNS = 2, 5
_PROMPT_TOKENS, _TOOL_TOKENS = 512, 48
_TOOL_SECONDS = 0.002, 0.02


class Engine:
    """Engine that samples for all trajectories at once, in a thread.

    A batch starts when all running trajectories wait for it, so nothing hides the cost of tracing between
    turns.
    """

    def __init__(self, size: Size, device: str) -> None:
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            intermediate_size=size.intermediate,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
        self.model: Any = Qwen2ForCausalLM(config).to(device, getattr(torch, size.dtype)).eval()
        self._new_tokens = size.new_tokens
        self._waiting: list[tuple[list[int], asyncio.Future[dict[str, Any]]]] = []
        self.running = 0

    async def generate(self, request_id: str, prompt_ids: list[int], temperature: float) -> dict[str, Any]:
        """Sample the next turn of a trajectory."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt_ids, answer))
        self._begin_if_all_wait()
        return await answer

    def leave(self) -> None:
        """Note that a trajectory has ended, so that batches no longer wait for it."""
        self.running -= 1
        self._begin_if_all_wait()

    def _begin_if_all_wait(self) -> None:
        if self._waiting and len(self._waiting) == self.running:
            self._batch = asyncio.create_task(self._answer_all())

    async def _answer_all(self) -> None:
        prompts, answers = zip(*self._waiting, strict=True)
        self._waiting = []
        try:
            for answer, turn in zip(answers, await asyncio.to_thread(self._sample, prompts), strict=True):
                answer.set_result(turn)
        except Exception as error:  # noqa: BLE001 - they would wait for ever
            answers[0].set_exception(error)

    def _sample(self, prompts: tuple[list[int], ...]) -> list[dict[str, Any]]:
        import torch

        longest = max(map(len, prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        padded = [[0] * left + prompt for left, prompt in zip(padding, prompts, strict=True)]
        mask = [[0] * left + [1] * (longest - left) for left in padding]
        with torch.inference_mode():
            output = self.model.generate(
                torch.tensor(padded, device=self.model.device),
                attention_mask=torch.tensor(mask, device=self.model.device),
                max_new_tokens=self._new_tokens,
                pad_token_id=0,
                do_sample=True,
                return_dict_in_generate=True,
                output_logits=True,
            )
            ids = output.sequences[:, longest:]
            each = zip(output.logits, ids.T, strict=True)
            chosen = [torch.log_softmax(at.float(), -1).gather(1, id_[:, None])[:, 0] for at, id_ in each]
            log_probs = torch.stack(chosen, 1)
        return [
            {"token_ids": sampled, "log_probs": probabilities, "stop_reason": "length"}
            for sampled, probabilities in zip(ids.tolist(), log_probs.tolist(), strict=True)
        ]


async def look_up(query: str, seconds: float) -> dict[str, Any]:
    """Answer as a tool: after a pause, with the same number of tokens each time."""
    await asyncio.sleep(seconds)
    return {"text": query * 8, "token_ids": random.Random(query).choices(range(4096), k=_TOOL_TOKENS)}


class Rollout:
    """Runs steps with one engine, with a tracer or without."""

    def __init__(self, engine: Engine, size: Size, tracer: str) -> None:
        self._engine, self._size = engine, size
        self.tracing = TRACERS[tracer].start()
        traced = tracer != UNTRACED
        self._generate = rollout_trace_op(kind="LLM")(engine.generate) if traced else engine.generate
        self._tool = rollout_trace_op(kind="TOOL")(look_up) if traced else look_up

    async def step(self, number: int) -> dict[str, float]:
        """Run all trajectories of a step at once."""
        self._engine.running = self._size.trajectories
        began = time.perf_counter()
        turns = await asyncio.gather(*(self._trajectory(number, n) for n in range(self._size.trajectories)))
        seconds = time.perf_counter() - began
        tokens = sum(turns) * self._size.new_tokens
        return {
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "spans": len(turns) + 2 * sum(turns),
        }

    async def _trajectory(self, step: int, sample: int) -> int:
        chances = random.Random(sample)  # equal random numbers in each step
        turns = chances.randint(*_TURNS)
        ids = chances.choices(range(4096), k=_PROMPT_TOKENS)
        with self.tracing.trajectory(step, sample):
            for turn in range(turns):
                answer = await self._generate(f"{step}-{sample}", ids, 1.0)
                seen = await self._tool(f"{sample}, {turn}: how many? ", chances.uniform(*_TOOL_SECONDS))
                ids = [*ids, *answer["token_ids"], *seen["token_ids"]]
        self._engine.leave()
        return turns


async def measure(device: str, pairs: int) -> dict[str, Any]:
    """In a separate process: run steps in turns; deliver each before the next."""
    import torch

    size = SIZES[device]
    engine = Engine(size, device)
    rollouts = {name: Rollout(engine, size, name) for name in (UNTRACED, OURS)}
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in rollouts}
    for pair in range(pairs + 1):
        for name in random.Random(pair).sample(list(rollouts), 2):
            steps[name].append(await rollouts[name].step(pair))
            rollouts[name].tracing.flush()
    rollouts[OURS].tracing.finish()
    untraced, traced = steps[UNTRACED][1:], steps[OURS][1:]  # without the warm-up
    ratios = [ours["seconds"] / plain["seconds"] - 1 for ours, plain in zip(traced, untraced, strict=True)]
    return {
        "parameters": engine.model.num_parameters(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "a CPU",
        "torch": torch.__version__,
        "slower_by": median(ratios),
        "slower_by_quartiles": quantiles(ratios, n=4, method="inclusive"),
        "spans": sum(step["spans"] for step in steps[OURS]),
        "steps": {"untraced": untraced, "traced": traced},
    }


def run(quick: bool = False, device: str = "cuda") -> dict[str, Any]:
    """Measure on a GPU; return no figures without one."""
    import torch

    from benchmarks.targets import TARGETS, running

    if device == "cuda" and not torch.cuda.is_available():
        print("language_model: not measured, torch sees no GPU here", file=sys.stderr)
        return {}
    with running(TARGETS[TRACERS[OURS].target]) as (target, place):
        variables = tracers.environment(OURS, target.variables(target.port), place / "spool")
        pairs = str(3 if quick else _PAIRS)
        found = tracers.run(OURS, __spec__.name, ["--device", device, "--pairs", pairs], variables)
        return {**found, "lost": found["spans"] - target.spans()}


def main() -> None:
    """Measure, or run as the measured process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.language_model", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps, for a first impression")
    parser.add_argument("--device", choices=SIZES, default="cuda")
    parser.add_argument("--pairs", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.pairs is None:
        print(json.dumps(run(given.quick, given.device), indent=1))
        return
    logging.disable(logging.ERROR)
    answers, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps(asyncio.run(measure(given.device, given.pairs))), file=answers, flush=True)


if __name__ == "__main__":
    main()
