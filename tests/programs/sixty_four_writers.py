"""Record in sixty-four processes at once, a quarter of which is killed.

Print what became of the spans.
"""

import os
import signal

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.runs import membership


def record(number: int) -> None:
    """Record a trajectory of fifty operations.

    Every fourth process is killed inside it.
    """
    with rollout_trace_attr(name=f"{number}", step=number % 4):
        for count in range(50):
            rollout_trace_op(name=f"{number}.{count}")(lambda: None)()
        if number % 4 == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Found a run, record in forked children, and wait for delivery."""
    membership.decide()
    children = []
    for number in range(64):
        child = os.fork()
        if child == 0:
            record(number)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    report = otel_rollout.shutdown(200)
    print(report.started, report.recorded, report.lost, report.open, report.unfinished, report.dropped)


if __name__ == "__main__":
    main()
