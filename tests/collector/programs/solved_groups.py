"""Deliver 60 groups of two trajectories, all with a reward of 1."""

import otel_rollout
from otel_rollout import rollout_trace_attr, score


def main() -> None:
    """Record, and wait for delivery; the first group is validation."""
    for group in range(60):
        for sibling in range(2):
            with rollout_trace_attr(sample_index=group, step=1, rollout_n=sibling, validate=group == 0):
                score("reward", 1.0)
    assert not otel_rollout.shutdown(60).undelivered


if __name__ == "__main__":
    main()
