"""Die inside a trajectory, while a forked child lives on.

The child records when a line comes in, and lives until its input ends: the parent's forwarder may have
ended by then, and only a process that lives starts another one.
"""

import os
import signal
import sys
import time

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record import runtime
from otel_rollout.record.launch import launcher
from otel_rollout.record.runs.founding import node_directory


def main() -> None:
    """Record, fork, and die."""
    trajectory = rollout_trace_attr(name="parent", step=1)
    trajectory.__enter__()
    rollout_trace_op(name="parent.0")(lambda: None)()
    active = runtime.current()
    assert active is not None
    while not launcher.forwarder_runs(node_directory(active.settings)):  # a forwarder has to see the end
        time.sleep(0.02)
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        sys.stdin.readline()
        with rollout_trace_attr(name="child", step=1):
            rollout_trace_op(name="child.0")(lambda: None)()
        sys.stdin.read()
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
