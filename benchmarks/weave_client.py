"""Use the unmodified weave client as verl does.

    python weave_client.py PROJECT SPANS

Runs in ``.venv-weave``. Prints when all calls are finished, and then waits instead of flushing.
"""

from __future__ import annotations

import sys
import time

TEXT = "The quick brown fox jumps over the lazy dog. " * 45
"""Return about 2 KB."""


def main() -> None:
    """Make the calls: trajectories of one root and nine operations."""
    import weave

    sys.stdout, answers = sys.stderr, sys.stdout  # the client prints a greeting
    client = weave.init(sys.argv[1])
    for trajectory in range(int(sys.argv[2]) // 10):
        attributes = {"step": 1, "sample_index": trajectory, "rollout_n": 0, "experiment_name": "bench"}
        parent = None
        calls = []
        for number in range(10):
            call = client.create_call(f"op{min(number, 1)}", {"text": TEXT}, parent, attributes)
            calls.append(call)
            parent = parent or call
        for call in reversed(calls):
            client.finish_call(call, output={"text": TEXT})
    print("finished", file=answers, flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
