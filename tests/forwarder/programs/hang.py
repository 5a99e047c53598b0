"""Record an operation, wait for a line, and hang in the trajectory: ``hang.py sleep|busy``."""

import re
import sys
import time

from otel_rollout import rollout_trace_attr, rollout_trace_op


@rollout_trace_op(name="op")
def op() -> None: ...


def main(how: str) -> None:
    """Sleep, or search without an end, which keeps the GIL from every other thread."""
    with rollout_trace_attr(step=1):
        op()
        sys.stdin.readline()
        if how == "sleep":
            time.sleep(600)
        re.match(r"(a+)+$", "a" * 60 + "b")


if __name__ == "__main__":
    main(sys.argv[1])
