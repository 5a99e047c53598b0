"""Deliver groups of trajectories: ``groups_of_every_outcome.py GROUPS SIBLINGS``.

Of each fifty groups number 10 has a failing tool, number 20 has a reward of 1, and number 30 gets one later.
The first five groups are validation.
"""

import contextlib
import sys

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from tests.small_segments import set_segment_bytes


@rollout_trace_op(kind="TOOL")
def tool(fails: bool) -> None:
    if fails:
        raise ValueError("no such tool")


def record(group: int, sibling: int) -> None:
    """Record one trajectory of three turns."""
    with rollout_trace_attr(
        sample_index=group, step=group // 50, rollout_n=sibling, validate=group < 5
    ) as trajectory:
        for turn in range(3):
            with contextlib.suppress(ValueError):
                tool(fails=turn == 1 and group % 50 == 10 and sibling == 1)
        score("reward", 1.0 if group % 50 == 20 and sibling == 2 else 0.25)
    if group % 50 == 30 and sibling == 3:
        score("reward", 1.0, trajectory=trajectory.id)


def main(groups: int, siblings: int) -> None:
    """Record all groups, and wait for delivery."""
    set_segment_bytes(500_000)  # several segments, so several resources
    for group in range(groups):
        for sibling in range(siblings):
            record(group, sibling)
    assert not otel_rollout.shutdown(60).undelivered


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
