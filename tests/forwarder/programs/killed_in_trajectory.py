"""Record an operation, and die by SIGKILL inside its trajectory."""

import os
import signal

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record import runtime


def main() -> None:
    """Record, wait until it is on disk, and die."""
    with rollout_trace_attr(step=1):
        rollout_trace_op(lambda: None)()
        active = runtime.current()
        assert active is not None
        active.writer.flush(10)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
