"""Start the application's own spans outside and inside a trajectory.

Prints the module of the tracer provider.
"""

import logging

from opentelemetry import trace

import otel_rollout


@otel_rollout.rollout_trace_op(name="op")
def op() -> int:
    with trace.get_tracer("app").start_as_current_span("app inside"):
        return 1


def main() -> None:
    """Record two of the application's spans, and a trajectory."""
    logging.basicConfig(level=logging.INFO)
    with trace.get_tracer("app").start_as_current_span("app outside"):
        pass
    with otel_rollout.rollout_trace_attr(step=3):
        op()
    print(type(trace.get_tracer_provider()).__module__)


if __name__ == "__main__":
    main()
