"""Deliver a scored trajectory whose tool fails."""

import contextlib

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score


@rollout_trace_op(kind="TOOL")
def tool() -> None:
    raise ValueError("no such tool")


def main() -> None:
    """Record, and wait for delivery."""
    with rollout_trace_attr(sample_index=1, step=1, rollout_n=0, validate=False):
        with contextlib.suppress(ValueError):
            tool()
        score("reward", 1.0)
    assert not otel_rollout.shutdown(60).undelivered


if __name__ == "__main__":
    main()
