"""Generate with vLLM in this process, in trajectories and outside; write down what the engine said.

    python -m tests.vllm.programs.in_process MODEL ACCOUNT

The program does not know whether it is traced.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams, TokensPrompt

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from tests.vllm.tiny_model import OF_ENGINE

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)
BLOCKS = 5
"""Blocks of the cache, of 128 tokens each: too few for all requests of the case `preempted`."""


class Account:
    """What the engine answered in each case, and what it says of its times."""

    def __init__(self) -> None:
        self.cases: dict[str, Any] = {}

    def note(self, case: str, outputs: list[Any]) -> None:
        """Write down the outputs of a case."""
        self.cases[case] = [
            {
                "id": output.request_id,
                "prompt": list(output.prompt_token_ids),
                "tokens": [list(answer.token_ids) for answer in output.outputs],
                "metrics": None if output.metrics is None else vars(output.metrics),
            }
            for output in sorted(outputs, key=lambda output: int(output.request_id))
        ]


def prompt(length: int, first: int = 10) -> TokensPrompt:
    """Return a prompt of ``length`` tokens."""
    return TokensPrompt(prompt_token_ids=list(range(first, first + length)))


def of_llm(llm: LLM, account: Account) -> None:
    """Generate by the methods of ``LLM``."""

    @rollout_trace_op(kind="LLM")
    def generate(prompts: list[Any], params: SamplingParams, name: str) -> None:
        account.note(name, llm.generate(prompts, params, use_tqdm=False))

    with rollout_trace_attr(step=1, name="greedy"):
        generate([prompt(5), prompt(9), prompt(13)], GREEDY, "greedy")
    with rollout_trace_attr(step=1, name="sampled"):
        generate([prompt(5), prompt(9)], SAMPLED, "sampled")
    with rollout_trace_attr(step=1, name="several"):
        several = SamplingParams(temperature=1, max_tokens=6, n=3, seed=7, ignore_eos=True)
        generate([prompt(5)], several, "several")
    with rollout_trace_attr(step=1, name="preempted"):
        generate([prompt(100, first) for first in range(10, 14)], LONG, "preempted")
    with rollout_trace_attr(step=1, name="chat"):
        account.note("chat", llm.chat([{"role": "user", "content": "Hello"}], GREEDY, use_tqdm=False))
    account.note("outside", llm.generate([prompt(5)], GREEDY, use_tqdm=False))
    rows = [
        OpenTrajectory(rollout_trace_attr(step=2, sample_index=row, name=f"batched {row}"))
        for row in range(2)
    ]
    account.note("batched", llm.generate([prompt(5), prompt(7)], GREEDY, use_tqdm=False))
    for row in rows:
        row.end()


def of_engine(llm: LLM, account: Account) -> None:
    """Add requests to the engine in two trajectories, and advance it outside of both."""
    engine = llm.llm_engine
    for request_id, name in ((1000, "first"), (1001, "second")):
        with rollout_trace_attr(step=3, name=name):
            engine.add_request(str(request_id), prompt(6), GREEDY)
    with rollout_trace_attr(step=3, name="aborted"):
        engine.add_request("1002", prompt(6), LONG)
    outputs = [output for _ in range(3) for output in engine.step() if output.finished]
    engine.abort_request(["1002"])
    while engine.has_unfinished_requests():
        outputs += [output for output in engine.step() if output.finished]
    account.note("engine", outputs)


def without_statistics(llm: LLM, account: Account) -> None:
    """Generate as with ``disable_log_stats=True``, LLM's default."""
    engine = llm.llm_engine
    engine.log_stats = engine.output_processor.log_stats = False
    with rollout_trace_attr(step=4, name="without statistics"):
        account.note("without statistics", llm.generate([prompt(5)], GREEDY, use_tqdm=False))
    engine.log_stats = engine.output_processor.log_stats = True


def failing(llm: LLM, account: Account) -> None:
    """Generate with an engine whose core fails."""
    core: Any = llm.llm_engine.engine_core
    original = core.get_output

    def get_output() -> Any:
        raise RuntimeError("the core has died")

    core.get_output = get_output
    try:
        with rollout_trace_attr(step=5, name="failing"):
            llm.generate([prompt(5)], GREEDY, use_tqdm=False)
    except RuntimeError as error:
        account.cases["failing"] = repr(error)
    core.get_output = original


def main() -> None:
    """Run all cases."""
    llm = LLM(
        sys.argv[1],
        **OF_ENGINE,
        num_gpu_blocks_override=BLOCKS,
        disable_log_stats=False,
        enable_prefix_caching=False,
    )
    account = Account()
    for case in (of_llm, of_engine, without_statistics, failing):
        case(llm, account)
    account.cases["random"] = random.random()
    account.cases["modules"] = sorted(
        name for name in sys.modules if name.startswith("otel_rollout.integrations")
    )
    Path(sys.argv[2]).write_text(json.dumps(account.cases))
    otel_rollout.shutdown()


if __name__ == "__main__":
    main()
