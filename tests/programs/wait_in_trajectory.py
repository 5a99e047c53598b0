"""Wait inside a trajectory, to be interrupted there."""

import time

from otel_rollout import rollout_trace_attr, rollout_trace_op


@rollout_trace_op(name="op")
def operation() -> None:
    """Do nothing."""


def main() -> None:
    """Record one operation, then wait."""
    with rollout_trace_attr(step=1):
        operation()
        print("ready", flush=True)
        for _ in range(600):  # a signal that comes just before one long sleep would wait for its end
            time.sleep(0.1)


if __name__ == "__main__":
    main()
