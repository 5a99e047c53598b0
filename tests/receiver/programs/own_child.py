"""A child of an agent that records with otel_rollout itself, in the environment of an agent."""

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op

if __name__ == "__main__":
    with rollout_trace_attr(step=9):
        rollout_trace_op(name="of child")(len)("x")
    print(otel_rollout.shutdown(timeout=60).directory, flush=True)
