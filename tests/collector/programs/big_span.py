"""Deliver a trajectory with one span of 20 MiB."""

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op


@rollout_trace_op
def turn(text: str) -> int:
    return len(text)


def main() -> None:
    """Record, and wait for delivery."""
    otel_rollout.configure(value_limit=24 << 20)
    with rollout_trace_attr(sample_index=1, step=1, rollout_n=0):
        turn("x" * (20 << 20))
    report = otel_rollout.shutdown(60)
    assert not report.undelivered, report.summary()
    assert not report.lost, report.summary()


if __name__ == "__main__":
    main()
