"""Record a trajectory whose model calls two processes make in turns; the second answer is encoded anew."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from otel_rollout import instrument, rollout_trace_attr, rollout_trace_op

TOKENS = 30


@rollout_trace_op(kind="LLM")
def generate(prompt_ids: list[int], messages: list[dict[str, str]]) -> dict[str, list[int]]:
    """Answer with tokens that no other prompt has."""
    first = 1000 * len(messages)
    return {"response_ids": list(range(first, first + TOKENS))}


def main() -> None:
    """Run the trajectory."""
    instrument()
    spawn = multiprocessing.get_context("spawn")
    workers = [ProcessPoolExecutor(1, spawn) for _ in range(2)]
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
        ids, messages = list(range(TOKENS)), [{"role": "user", "content": "Why?"}]
        for turn in range(4):
            answer = workers[turn % 2].submit(generate, ids, messages).result()["response_ids"]
            if turn == 1:
                answer[10:12] = [7, 8, 9]
            ids = [*ids, *answer, *range(100 * turn, 100 * turn + TOKENS)]
            texts = {"assistant": f"Answer {turn}.", "user": f"Question {turn}?"}
            messages = [*messages, *({"role": role, "content": text} for role, text in texts.items())]
    for worker in workers:
        worker.shutdown()


if __name__ == "__main__":
    main()
