"""Record two steps into the MLflow run that the argument names, as a trainer does."""

import sys

import otel_rollout
from otel_rollout import rollout_trace_attr, score


def main() -> None:
    """Publish the run after the first step, and wait for the delivery."""
    for step in (1, 2):
        for rollout in range(2):
            with rollout_trace_attr(step=step, sample_index=rollout, rollout_n=0):
                score("reward", step / 2)
        otel_rollout.publish_run(mlflow=sys.argv[1])
    assert not otel_rollout.shutdown(60).undelivered


if __name__ == "__main__":
    main()
