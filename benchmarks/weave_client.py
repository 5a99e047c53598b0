"""The unmodified weave client, used as verl uses it: ``python weave_client.py PROJECT SPANS [hold]``.

Runs in ``.venv-weave``. Prints JSON: µs the caller was held up per span, and seconds until all was flushed.
With "hold" it says when all calls are finished, and waits instead of flushing.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median

TEXT = "The quick brown fox jumps over the lazy dog. " * 45
"""About 2 KB."""


def caller_figures(held_up: list[float]) -> dict[str, float]:
    """What the caller was held up per span, in µs; the first trajectory, which sets all up, left out."""
    rest = held_up[10:]
    return {"caller_us_mean": sum(rest) / len(rest), "caller_us_p50": median(rest)}


def main() -> None:
    """Make the calls: trajectories of one root and nine operations."""
    import weave

    sys.stdout, answers = sys.stderr, sys.stdout  # the client greets
    project, spans = sys.argv[1], int(sys.argv[2])
    client = weave.init(project)
    held_up: list[float] = []
    cpu, began = time.process_time(), time.perf_counter()
    for trajectory in range(spans // 10):
        attributes = {"step": 1, "sample_index": trajectory, "rollout_n": 0, "experiment_name": "bench"}
        parent = None
        calls = []
        for number in range(10):
            before = time.perf_counter_ns()
            call = client.create_call(f"op{min(number, 1)}", {"text": TEXT}, parent, attributes)
            calls.append((call, time.perf_counter_ns() - before))
            parent = parent or call
        for call, created in reversed(calls):
            before = time.perf_counter_ns()
            client.finish_call(call, output={"text": TEXT})
            held_up.append((created + time.perf_counter_ns() - before) / 1e3)
    if "hold" in sys.argv:
        print("finished", file=answers, flush=True)
        time.sleep(600)
    client.flush()
    figures = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps({**caller_figures(held_up), **figures}), file=answers, flush=True)


if __name__ == "__main__":
    main()
