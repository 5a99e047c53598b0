"""Open trajectories, print what their agents need, and hold them open until the end of the input."""

import contextvars
import json
import sys

import otel_rollout
from otel_rollout import Trajectory, child_environment, rollout_trace_attr


def begin(index: int) -> Trajectory:
    """Begin a trajectory in the current context."""
    trajectory = rollout_trace_attr(step=3, sample_index=index, rollout_n=0)
    trajectory.__enter__()
    print(json.dumps(child_environment()), flush=True)
    return trajectory


if __name__ == "__main__":
    contexts = [contextvars.copy_context() for _ in range(int(sys.argv[1]))]
    held = [(context, context.run(begin, index)) for index, context in enumerate(contexts)]
    sys.stdin.read()
    for context, trajectory in held:
        context.run(trajectory.__exit__, None, None, None)
    print(otel_rollout.shutdown(timeout=60).summary(), flush=True)
