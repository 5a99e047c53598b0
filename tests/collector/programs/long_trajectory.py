"""Record 3000 turns and one of 5 MiB in three seconds, over several segments."""

import time

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from tests.small_segments import set_segment_bytes


@rollout_trace_op
def turn(text: str) -> int:
    return len(text)


def main() -> None:
    """Record one trajectory, and shut down."""
    set_segment_bytes(2_000_000)
    otel_rollout.configure(value_limit=8 << 20)
    with rollout_trace_attr(sample_index=1, step=1, rollout_n=0):
        for _ in range(3000):
            turn("x" * 1500)
            time.sleep(0.001)
        turn("y" * (5 << 20))
    report = otel_rollout.shutdown(60)
    assert report.recorded == 3002, report.summary()
    assert not report.undelivered, report.summary()


if __name__ == "__main__":
    main()
