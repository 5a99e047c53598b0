"""Record operations and sleep in the trajectory: ``worker.py NUMBER [SECONDS]``."""

import sys
import time

from otel_rollout import rollout_trace_attr, rollout_trace_op


@rollout_trace_op(name="op")
def op(number: int) -> int:
    return number


def main(number: int, seconds: int = 60) -> None:
    """Record one trajectory, and print ``recorded`` before its end."""
    with rollout_trace_attr(step=1):
        for count in range(number):
            op(count)
        print("recorded", flush=True)
        time.sleep(seconds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
