"""Run TRL's asynchronous workers against a scripted server, and write down what they returned.

Arguments: the file for the account. One worker fails in its third group, the other is killed in its first.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import otel_rollout.integrations.trl
from tests.trl.programs import async_rewards, async_training
from tests.trl.programs.completions_server import ScriptedServer

SIBLINGS = 4
GROUPS = 2
VERSION = 7
DEADLINE = 400.0


def tokenizer() -> Any:
    """Return the demo's tokenizer with a chat template that TRL knows."""
    from transformers import PreTrainedTokenizerFast
    from trl import chat_template_utils

    from otel_rollout_demo.tokenizer import TOKENIZER_DIR

    made = PreTrainedTokenizerFast.from_pretrained(str(TOKENIZER_DIR))
    folder = Path(chat_template_utils.__file__).parent / "chat_templates"
    made.chat_template = (folder / "qwen2_5.jinja").read_text()
    return made


def worker(server: ScriptedServer, made: Any, questions: list[str]) -> Any:
    """Return a worker that is not yet started."""
    from datasets import Dataset
    from trl.experimental.async_grpo import async_rollout_worker

    async_rollout_worker.is_vllm_available = lambda: True  # the server is not vLLM
    prompts = [[{"role": "user", "content": f"question {question}"}] for question in questions]
    rewards: list[Any] = [async_rewards.mentions_five, async_rewards.is_short]
    return async_rollout_worker.AsyncRolloutWorker(
        model_name="scripted",
        dataset=Dataset.from_dict({"prompt": prompts}),
        reward_funcs=rewards,
        processing_class=made,
        eos_token_ids=[made.eos_token_id],
        tools=[async_rewards.add, async_rewards.add_later, async_rewards.fail],
        num_generations=SIBLINGS,
        max_inflight_tasks=SIBLINGS,
        vllm_server_url=server.url,
        max_tokens=64,
        child_ready_timeout=int(DEADLINE),
        dataset_start_index=1,
    )


def account_of(sample: Any) -> dict[str, Any]:
    """Return a sample as JSON can hold it."""
    return {
        "group_id": sample.group_id,
        "model_version": sample.model_version,
        "prompt": sample.prompt,
        "completion": sample.completion,
        "input_ids": sample.input_ids.tolist(),
        "completion_mask": sample.completion_mask.tolist(),
        "old_log_probs": sample.old_log_probs.tolist(),
        "advantage": sample.advantage,
        "metrics": sample.metrics,
    }


def wait_for(server: ScriptedServer, waiting: int) -> None:
    """Wait until so many requests wait for an answer."""
    deadline = time.monotonic() + DEADLINE
    while server.waiting < waiting:
        if time.monotonic() > deadline:
            raise TimeoutError("the worker does not ask")
        time.sleep(0.02)


def main() -> None:
    """Run both workers, and write the account."""
    from accelerate import PartialState

    PartialState()  # the trainer's, which TRL's logger needs
    made = tokenizer()
    server, silent = ScriptedServer(made), ScriptedServer(made)
    stopped = worker(server, made, ["-", "0", "1", "wait"])
    stopped.update_model_version(VERSION)
    trainer = async_training.trainer(VERSION)
    rows: queue.Queue[Any] = queue.Queue()
    dataset = async_training.dataset(trainer, rows, VERSION)
    killed = worker(silent, made, ["-", "wait"])
    silent.refuses_next = False
    starting = threading.Thread(target=killed.start)
    starting.start()
    stopped.start()
    starting.join()
    samples = [stopped.rollout_buffer.get(timeout=DEADLINE) for _ in range(SIBLINGS * GROUPS)]
    wait_for(silent, SIBLINGS)
    os.kill(killed._process.pid, signal.SIGKILL)
    wait_for(server, SIBLINGS)
    server.fault.set()
    stopped._process.join(DEADLINE)
    for sample in samples:
        rows.put(sample)
    trained = async_training.train(trainer, dataset, max(len(sample.input_ids) for sample in samples) - 1)
    killed._process.join(DEADLINE)  # stop() would wait for ever: the process was in a wait
    account = {
        "samples": [account_of(sample) for sample in samples],
        "exchanges": server.exchanges,
        "trained": trained,
    }
    Path(sys.argv[1]).write_text(json.dumps(account))


if __name__ == "__main__":
    assert otel_rollout.integrations.trl
    main()
