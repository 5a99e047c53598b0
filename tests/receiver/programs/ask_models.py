"""Record trajectories with a model call each, print the calls, and wait for the end of the input."""

import json
import sys
import time
from typing import Any

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op


@rollout_trace_op(kind="LLM")
def ask(number: int) -> dict[str, Any]:
    """Answer as an engine's server does, with the id of a request."""
    time.sleep(0.05)
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    return {"id": f"chatcmpl-{number}", "model": "tiny", "usage": usage, "choices": []}


if __name__ == "__main__":
    for index in range(int(sys.argv[1])):
        with rollout_trace_attr(step=3, sample_index=index, rollout_n=0) as trajectory:
            begin = time.time_ns()
            answer = ask(index)
            print(json.dumps({"id": answer["id"], "times": [begin, time.time_ns()]}), flush=True)
    sys.stdin.read()
    print(otel_rollout.shutdown(timeout=60).summary(), flush=True)
