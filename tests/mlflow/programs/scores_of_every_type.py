"""Deliver scores of every type to MLflow, also for a delivered trajectory."""

import time

import otel_rollout
from otel_rollout import rollout_trace_attr, score


def main() -> None:
    """Record three trajectories, score the last one once delivered, and shut down."""
    with rollout_trace_attr(sample_index=1, step=1):
        score("reward", 0.25, comment="half of it is right")
        score("turns", 3)
        score("solved", True, comment="the tests pass")
        score("cheated", False)
        score("verdict", "too long")
        score("style", 0.1, comment="first impression")
        score("style", 0.9, comment="second thoughts")
    with rollout_trace_attr(sample_index=2, step=1):
        score("reward", 0.1)
        score("solved", False)
    with rollout_trace_attr(sample_index=3, step=1) as over:
        pass
    while otel_rollout.status().exporters["mlflow"].pending:
        time.sleep(0.1)
    score("reward", -0.5, trajectory=over.id)
    score("reward", 0.9, trajectory=over.id, comment="on second thoughts")
    score("filtered", True, trajectory=over.id)
    report = otel_rollout.shutdown(60)
    assert report.lost == 0, report
    assert not report.exporters["mlflow"].pending, report


if __name__ == "__main__":
    main()
