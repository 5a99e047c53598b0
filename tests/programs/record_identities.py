"""Record a trajectory with one operation for each identity in a JSON list."""

import json
import sys

import otel_rollout

if __name__ == "__main__":
    for identity in json.loads(sys.argv[1]):
        with otel_rollout.rollout_trace_attr(**identity):
            otel_rollout.rollout_trace_op(name="generate")(lambda: "said")()
    otel_rollout.shutdown(1)
