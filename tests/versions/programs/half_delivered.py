"""Record two trajectories; when they are delivered and a line is read, record a third and begin a fourth."""

from __future__ import annotations

import os
import sys
import time

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score


def trajectory(sample_index: int) -> None:
    """Record a trajectory of two turns with a score."""
    with rollout_trace_attr(sample_index=sample_index, step=1):
        for text in ("one", "two"):
            rollout_trace_op(name="turn", kind="LLM")(str.upper)(text)
        score("reward", float(sample_index))


def main() -> None:
    """Leave a spool that is delivered in part; the process is to be killed."""
    otel_rollout.configure({"delta": {"uri": os.environ["TABLE"]}}, project_name="upgraded")
    print(otel_rollout.__file__, flush=True)
    trajectory(0)
    trajectory(1)
    while otel_rollout.status().exporters["delta"].delivered < 8:
        time.sleep(0.1)
    print("delivered", flush=True)
    sys.stdin.readline()
    trajectory(2)
    with rollout_trace_attr(sample_index=3, step=1):
        rollout_trace_op(name="turn", kind="LLM")(str.upper)("unfinished")
        print("recorded", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main()
