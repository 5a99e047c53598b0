"""Hold trajectories open inside an operation, and print the ids that their agents are told.

A line of the input ends the trajectories, and the input's end the program.
"""

import json
import sys
import threading

import otel_rollout
from otel_rollout import child_environment, rollout_trace_attr, rollout_trace_op

is_over = threading.Event()


@rollout_trace_op
def hold(told: dict[str, str]) -> None:
    """Hand out the ids of this operation and of a trajectory inside it, and wait."""
    told["operation"] = child_environment()["TRACEPARENT"]
    with rollout_trace_attr(step=3, sample_index="inner", rollout_n=0):
        told["inner"] = child_environment()["TRACEPARENT"]
        print(json.dumps(told) + "\n", end="", flush=True)  # one piece: threads print at once
        is_over.wait()


def roll_out(index: int) -> None:
    """Run a trajectory."""
    with rollout_trace_attr(step=3, sample_index=index, rollout_n=0):
        hold({"root": child_environment()["TRACEPARENT"]})
        otel_rollout.score("reward", 1.0)


if __name__ == "__main__":
    threads = [threading.Thread(target=roll_out, args=(index,)) for index in range(int(sys.argv[1]))]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    is_over.set()
    for thread in threads:
        thread.join()
    print("ended", flush=True)
    sys.stdin.read()
    print(otel_rollout.shutdown(timeout=60).summary(), flush=True)
