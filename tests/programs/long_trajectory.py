"""Record an operation, print ``running``, and stay two minutes in the trajectory."""

import time

from otel_rollout import rollout_trace_attr, rollout_trace_op


@rollout_trace_op(name="turn")
def turn(number: int) -> int:
    return number


if __name__ == "__main__":
    with rollout_trace_attr(sample_index=5, step=9, rollout_n=1, agent_name="slow"):
        turn(1)
        print("running", flush=True)
        time.sleep(120)
