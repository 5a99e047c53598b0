"""Deliver 24 scored trajectories whose two turns call a tool each."""

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score


@rollout_trace_op(kind="TOOL")
def tool(text: str) -> str:
    return text.upper()


@rollout_trace_op(kind="LLM")
def turn(text: str) -> str:
    return tool(text)


def record(step: int, sample: int, sibling: int) -> None:
    """Record one trajectory; those of sample 3 are validation."""
    with rollout_trace_attr(
        sample_index=sample,
        step=step,
        rollout_n=sibling,
        validate=sample == 3,
        policy_version=step + 10,
    ):
        turn("one")
        turn("two")
        score("reward", sample / 4)


def main() -> None:
    """Record, and wait for delivery."""
    for step in range(3):
        for sample in range(4):
            for sibling in range(2):
                record(step, sample, sibling)
    report = otel_rollout.shutdown(60)
    assert not report.undelivered, report
    assert not report.lost, report


if __name__ == "__main__":
    main()
