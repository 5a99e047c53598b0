#!/bin/sh
# What `make demo-train` runs: GRPO by TRL, traced by the variables alone, and what is to be seen of it.
set -eu
cd "$(dirname "$0")/../.."
# One thread: the model is too small for more.
OTEL_TRACES_EXPORTER=mlflow,delta OTEL_ROLLOUT_PROJECT=trl-demo OTEL_ROLLOUT_DELTA_URI="$PWD/rollouts" \
MLFLOW_TRACKING_URI="sqlite:///$PWD/mlflow.db" MLFLOW_EXPERIMENT_NAME=trl-demo OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore \
    .venv/bin/python examples/trl/grpo_calculator.py --model build/tiny-model --output build/grpo-calculator --report-to mlflow
echo; echo "== a trajectory with a tool call"
.venv/bin/otel-rollout show "$(.venv/bin/otel-rollout list --run latest --where 'tool_calls > 0' \
    --sort -tool_errors,path --limit 1 --format csv | cut -d , -f 1 | tail -n 1)"
echo; echo "== all steps"
.venv/bin/otel-rollout steps --run latest
echo "
Look further:
  . .venv/bin/activate
  otel-rollout group 1/1                                # siblings as a tree, and why one was better
  otel-rollout view                                     # all of it in a browser
  mlflow server --backend-store-uri sqlite:///mlflow.db # the traces, in experiment trl-demo"
