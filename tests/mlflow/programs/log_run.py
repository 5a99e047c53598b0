"""Log an MLflow run when a line comes in: ``log_run.py URI EXPERIMENT``."""

import sys

import mlflow


def main(uri: str, experiment: str) -> None:
    """Print ``ready``, wait for the line, and log a run with one metric."""
    print("ready", flush=True)
    sys.stdin.readline()
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment(experiment)
    with mlflow.start_run():
        mlflow.log_metric("reward", 1.0)
    print("delivered")


if __name__ == "__main__":
    main(*sys.argv[1:])
