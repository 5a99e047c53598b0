"""Measure by how much tracing slows a GRPO step of TRL, and its CPU per trajectory and model call.

    python -m benchmarks --only trl_step

One process trains a Qwen2 of random weights with TRL's ``GRPOTrainer`` and a tool. A logits processor makes
the model's replies those of a script, and the learning rate is 0, so the work of every step is equal. Traced
and untraced steps alternate. Spans are delivered to a SQLite file of MLflow's meanwhile. Then a batch is
repeated without the model: each call of ``generate`` returns what it returned before, so that the difference
in CPU is that of tracing.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from statistics import median, quantiles
from typing import Any

from benchmarks.tracers import ROOT, inherited

TRAJECTORIES, SIBLINGS = 8, 4
TURNS = 2
"""Model calls of a trajectory: one that calls the tool, one that answers."""
_PAIRS, _QUICK_PAIRS = 12, 3
_BATCHES, _QUICK_BATCHES = 100, 20
_FINISH_SECONDS = 300.0
_PROCESS_SECONDS = 3600.0
_WORDS = " ".join(f"Step {number}: add what is known to what was found before." for number in range(4))


def run(quick: bool = False) -> dict[str, Any]:
    """Measure in a process of its own."""
    pairs, batches = (_QUICK_PAIRS, _QUICK_BATCHES) if quick else (_PAIRS, _BATCHES)
    with tempfile.TemporaryDirectory() as directory:
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", __spec__.name, str(pairs), str(batches), directory],
            env={
                **inherited(),
                "OTEL_TRACES_EXPORTER": "mlflow",
                "OTEL_ROLLOUT_PROJECT": "bench-trl",
                "OTEL_ROLLOUT_SPOOL_DIR": f"{directory}/spool",
                "MLFLOW_TRACKING_URI": f"sqlite:///{directory}/mlflow.db",
                "MLFLOW_DISABLE_TELEMETRY": "true",
            },
            cwd=ROOT,
            capture_output=True,
            check=False,
            text=True,
            timeout=_PROCESS_SECONDS,
        )
    if ran.returncode:
        raise RuntimeError(f"the measured process failed:\n{ran.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.

    Returns:
        The sum.
    """
    return a + b


def done(completions: list[Any], **kwargs: Any) -> list[float]:
    """Reward an answer in the last message."""
    return [float("sum" in turns[-1]["content"]) for turns in completions]


def length(completions: list[Any], **kwargs: Any) -> list[float]:
    """Reward a short answer; siblings differ."""
    return [1 / len(turns[-1]["content"]) for turns in completions]


def reply(text: str, row: int) -> str:
    """Return the reply of a row to a conversation: a call of the tool, then an answer."""
    if "<tool_response>" in text.rsplit("<|im_start|>user\n", 1)[-1]:
        return f"{_WORDS} The sum is {row + 2}."
    return f'{_WORDS}\n<tool_call>\n{{"name": "add", "arguments": {{"a": {row}, "b": 2}}}}\n</tool_call>'


def make_model() -> Any:
    """Return a model of 4 million random weights that follows :func:`reply`."""
    import torch
    from transformers import Qwen2Config

    from tests.trl import scripted_model

    words = scripted_model.tokenizer()
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    made = scripted_model.ScriptedModel(config)
    made.script, made.words = reply, words
    return made


def make_trainer(directory: str, steps: int) -> Any:
    """Return a trainer whose steps are traced if its attribute ``traced`` is true."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from tests.trl import scripted_model

    tracing = GRPOTrainer._generate_and_score_completions
    plain = tracing.__wrapped__

    class Alternating(GRPOTrainer):  # type: ignore[misc]
        traced = True
        inputs: Any = None

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.inputs = inputs
            return (tracing if self.traced else plain)(self, inputs)

    prompts = [[{"role": "user", "content": f"What is {number} + 2?"}] for number in range(2)]
    return Alternating(
        model=make_model(),
        processing_class=scripted_model.tokenizer(),
        reward_funcs=[done, length],
        tools=[add],
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        args=GRPOConfig(
            output_dir=directory,
            max_steps=steps,
            per_device_train_batch_size=TRAJECTORIES,
            num_generations=SIBLINGS,
            max_completion_length=400,
            shuffle_dataset=False,
            learning_rate=0.0,
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )


def turns_of_steps(pairs: int) -> list[bool]:
    """Return whether each step is traced: pairs in random order, after a pair that warms up."""
    order = random.Random(0)
    return [traced for _ in range(pairs + 1) for traced in order.sample([False, True], 2)]


def measure_steps(trainer: Any, turns: list[bool]) -> dict[str, list[float]]:
    """Train; return the seconds of each step without the warm-up."""
    from transformers import TrainerCallback

    seconds: dict[bool, list[float]] = {False: [], True: []}

    class Clock(TrainerCallback):  # type: ignore[misc]
        began = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer.traced = turns[state.global_step]
            self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seconds[trainer.traced].append(time.perf_counter() - self.began)

    trainer.add_callback(Clock())
    trainer.train()
    return {"untraced": seconds[False][1:], "traced": seconds[True][1:]}


def measure_batches(trainer: Any, batches: int) -> dict[str, float]:
    """Repeat a batch without the model; return the CPU of tracing, in µs per trajectory."""
    trainer.model.generate = remembering(trainer.model.generate, TURNS)
    cpu: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    order = random.Random(1)
    for _ in range(batches + 1):
        for traced in order.sample([False, True], 2):
            trainer.traced = traced
            began = time.thread_time_ns(), time.process_time_ns()
            trainer._generate_and_score_completions(trainer.inputs)
            cpu[traced].append((time.thread_time_ns() - began[0], time.process_time_ns() - began[1]))
    found = {}
    for place, name in enumerate(("thread_us", "process_us")):
        plain, ours = (median(spent[place] for spent in cpu[traced][1:]) for traced in (False, True))
        found[name] = (ours - plain) / 1000 / TRAJECTORIES
    return found


def remembering(generate: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """Return a function whose n-th call returns what call ``n % calls`` returned."""
    answers: list[Any] = []
    place = 0

    def remembered(*args: Any, **kwargs: Any) -> Any:
        nonlocal place
        if len(answers) < calls:
            answers.append(generate(*args, **kwargs))
        answer = answers[place % calls]
        place += 1
        return answer

    return remembered


def measure(pairs: int, batches: int, directory: str) -> dict[str, Any]:
    """Measure in this process."""
    import torch

    import otel_rollout
    import otel_rollout.integrations.trl

    torch.set_num_threads(1)
    turns = turns_of_steps(pairs)
    trainer = make_trainer(directory, len(turns))
    steps = measure_steps(trainer, turns)
    cpu = measure_batches(trainer, batches)
    report = otel_rollout.shutdown(_FINISH_SECONDS)
    ratios = [ours / plain - 1 for ours, plain in zip(steps["traced"], steps["untraced"], strict=True)]
    return {
        "trl": version("trl"),
        "torch": torch.__version__,
        "parameters": trainer.model.num_parameters(),
        "trajectories": TRAJECTORIES,
        "turns": TURNS,
        "slower_by": median(ratios),
        "slower_by_quartiles": quantiles(ratios, n=4, method="inclusive"),
        "cpu": cpu,
        "spans": report.recorded,
        "lost": report.lost,
        "steps": steps,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The measured process.")
    parser.add_argument("pairs", type=int)
    parser.add_argument("batches", type=int)
    parser.add_argument("directory")
    given = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps(measure(given.pairs, given.batches, given.directory)), file=answers, flush=True)
