"""Record 10 MB, more than limit and journal together; print the drops."""

import otel_rollout
from otel_rollout import rollout_trace_op


@rollout_trace_op
def op(text: str) -> str:
    return text


if __name__ == "__main__":
    for _ in range(1000):
        op("x" * 10_000)
    print(otel_rollout.status().dropped)
