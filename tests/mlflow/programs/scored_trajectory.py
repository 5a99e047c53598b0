"""Record a scored trajectory, and print MLflow's part of the delivery report."""

import otel_rollout

if __name__ == "__main__":
    with otel_rollout.rollout_trace_attr(sample_index=1, step=1):
        otel_rollout.score("reward", 0.5)
    print(otel_rollout.shutdown(60).exporters["mlflow"])
