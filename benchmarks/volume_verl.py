"""Measure a trajectory under verl's mlflow backend with token2text.

:mod:`.volume` runs this module with verl's Python.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.volume_shape import ANSWER, GROWTH, TURNS


async def _run(place: Path, tokenizer_file: str) -> dict[str, Any]:
    os.environ["VERL_USE_EXTERNAL_PLUGINS"] = "none"
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{place}/verl.db"
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    import mlflow
    from tokenizers import Tokenizer
    from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

    ids: list[int] = json.loads((place / "trajectory.json").read_text())

    class Counting:
        def __init__(self) -> None:
            self.tokenizer = Tokenizer.from_file(tokenizer_file)
            self.decoded = 0

        def decode(self, tokens: list[int]) -> str:
            self.decoded += len(tokens)
            return str(self.tokenizer.decode(tokens, skip_special_tokens=False))

    class Agent:
        tokenizer = Counting()

        @rollout_trace_op  # type: ignore[untyped-decorator]
        async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any]) -> dict[str, Any]:
            return {"token_ids": ids[len(prompt_ids) : len(prompt_ids) + ANSWER], "stop_reason": "completed"}

        @rollout_trace_op  # type: ignore[untyped-decorator]
        async def run(self) -> dict[str, Any]:
            for turn in range(1, TURNS + 1):
                await self.generate(ids[: turn * GROWTH], {"temperature": 1.0})
            mask = [int(position % GROWTH < ANSWER) for position in range(len(ids) - GROWTH)]
            return {"prompt_ids": ids[:GROWTH], "response_ids": ids[GROWTH:], "response_mask": mask}

    RolloutTraceConfig.init("bench", "bench", "mlflow", token2text=True)
    mlflow.set_experiment("bench")
    began, spent = time.perf_counter(), time.process_time()
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
        await Agent().run()
    wall, cpu = time.perf_counter() - began, time.process_time() - spent
    mlflow.flush_trace_async_logging()
    (trace,) = mlflow.search_traces(return_type="list")
    content = sum(len(json.dumps(part)) for span in trace.data.spans for part in (span.inputs, span.outputs))
    return {
        "decoded_tokens": Agent.tokenizer.decoded,
        "content_bytes": content,
        "wall_ms": wall * 1e3,
        "cpu_ms": cpu * 1e3,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_run(Path(sys.argv[1]), sys.argv[2]))))
