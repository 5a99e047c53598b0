"""Measure what the trainer's process spends on a step's scores: python -m benchmarks.score_batch."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import otel_rollout

TRAJECTORIES = 512
TOKENS = 8192
ROUNDS = 15
_SETTLED = 0.3
"""Seconds after which the flusher has written what a call recorded."""


def scores() -> dict[str, Any]:
    """Return what training makes of a step: twelve scores, as arrays of the trainer."""
    source = np.random.default_rng(0)
    return {
        **{f"float {number}": source.normal(size=TRAJECTORIES).astype(np.float32) for number in range(8)},
        "return": source.normal(size=TRAJECTORIES),
        "trained_tokens": source.integers(0, TOKENS, TRAJECTORIES),
        "policy_lag": source.integers(0, 4, TRAJECTORIES),
        "trained": source.random(TRAJECTORIES) < 0.5,
    }


def _measure(record: Callable[[int], object], rounds: int) -> dict[str, float]:
    """Return CPU time of all threads, and wall time of the call, in milliseconds."""
    record(0)
    time.sleep(_SETTLED)
    idle = time.process_time()
    time.sleep(_SETTLED)
    idle = time.process_time() - idle
    cpu, wall = [], []
    for number in range(1, rounds + 1):
        cpu_began, wall_began = time.process_time(), time.perf_counter()
        record(number)
        wall.append(time.perf_counter() - wall_began)
        time.sleep(_SETTLED)
        cpu.append(time.process_time() - cpu_began - idle)
    return {"cpu_ms": statistics.median(cpu) * 1e3, "wall_ms": statistics.median(wall) * 1e3}


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Measure a batch, a batch with values per token, and a loop over ``score()``."""
    given = scores()
    rows = [f"uid-{row // 8}" for row in range(TRAJECTORIES)]
    rollouts = np.arange(TRAJECTORIES) % 8
    reasons = [None if is_trained else "all rewards are equal" for is_trained in given["trained"]]
    tokens = {"logprob": [np.random.default_rng(1).normal(size=TOKENS).astype(np.float32)] * TRAJECTORIES}

    def batch(step: int, token_values: dict[str, Any] | None = None) -> None:
        otel_rollout.score_batch(
            given,
            step=step,
            sample_index=rows,
            rollout_n=rollouts,
            comments={"trained": reasons},
            token_values=token_values,
        )

    def loop(step: int) -> None:
        for name, values in given.items():
            for row, value in enumerate(values):
                otel_rollout.score(name, value, step=step, sample_index=rows[row], rollout_n=rollouts[row])

    return {
        "batch": _measure(batch, rounds),
        "batch with values per token": _measure(lambda step: batch(step, tokens), max(3, rounds // 3)),
        "loop over score()": _measure(loop, max(2, rounds // 5)),
    }


def run(quick: bool = False) -> dict[str, Any]:
    """Measure in another process, which records into a spool that nobody reads."""
    rounds = str(3 if quick else ROUNDS)
    command = [sys.executable, "-m", "benchmarks.score_batch", rounds]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    cases = json.loads(found.stdout)
    return {"trajectories": TRAJECTORIES, "scores": len(scores()), "tokens": TOKENS, "cases": cases}


def main() -> None:
    """Print the figures as JSON."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as directory:
        otel_rollout.configure(exporters=["spool"], training_tokens=True, spool_dir=directory)
        print(json.dumps(measure(rounds), indent=1))
        otel_rollout.shutdown(60)


if __name__ == "__main__":
    main()
