"""Die by SIGKILL, leaving a forked child that prints its writer's id and sleeps."""

import os
import signal
import time

import otel_rollout
from otel_rollout.record import runtime


def main() -> None:
    """Record in parent and child."""
    otel_rollout.configure("console")
    with otel_rollout.rollout_trace_attr(name="parent"):
        pass
    if os.fork() == 0:
        with otel_rollout.rollout_trace_attr(name="child"):
            pass
        active = runtime.current()
        assert active is not None
        active.writer.flush(5)
        print(active.writer.id, flush=True)
        time.sleep(60)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
