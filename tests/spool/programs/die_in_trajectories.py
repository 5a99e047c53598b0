"""Die in open trajectories: ``die_in_trajectories.py NUMBER EXTRA NAME OPTIONS``.

EXTRA is the size of an attribute. OPTIONS is a JSON object: with ``application`` the application has a tracer
provider of its own; ``experiment`` names the experiment.
"""

import json
import os
import signal
import sys
from typing import Any

from opentelemetry import context, trace

import otel_rollout
from otel_rollout import rollout_trace_attr


def main(number: int, extra: int, name: str, options: dict[str, Any]) -> None:
    """Begin trajectories, and die by SIGKILL."""
    if "application" in options:
        from opentelemetry.sdk.trace import TracerProvider

        trace.set_tracer_provider(TracerProvider())
    otel_rollout.configure(
        "spool", project_name="project", experiment_name=options.get("experiment", "experiment")
    )
    running = []
    for row in range(number):
        context.attach(context.Context())
        trajectory = rollout_trace_attr(
            sample_index=row, step=4, rollout_n=2, validate=True, name=name, who="x" * extra
        )
        trajectory.__enter__()
        running.append(trajectory)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
