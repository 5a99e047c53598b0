"""Record in a pytest test; the variable EXPORTERS, if set, names exporters."""

import os

import otel_rollout


def test_something() -> None:
    otel_rollout.configure(os.environ.get("EXPORTERS"))
    with otel_rollout.rollout_trace_attr(step=1) as trajectory:
        pass
    print("TRACE", trajectory.trace_id)
