"""Record a trajectory with one operation."""

from otel_rollout import rollout_trace_attr, rollout_trace_op

if __name__ == "__main__":
    with rollout_trace_attr():
        rollout_trace_op(name="of child")(len)("x")
