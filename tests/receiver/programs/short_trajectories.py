"""Open and end trajectories at once, print what their agents need, and stay until the end of the input."""

import json
import sys

import otel_rollout
from otel_rollout import child_environment, rollout_trace_attr

if __name__ == "__main__":
    for index in range(int(sys.argv[1])):
        with rollout_trace_attr(step=3, sample_index=index, rollout_n=0):
            variables = child_environment()
        print(json.dumps(variables), flush=True)
    sys.stdin.read()
    print(otel_rollout.shutdown(timeout=60).summary(), flush=True)
