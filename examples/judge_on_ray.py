"""Judge every trajectory of a rollout table on a Ray cluster, and write the scores back.

    otel-rollout demo                          # writes ./rollouts
    python examples/judge_on_ray.py ./rollouts
    otel-rollout query "SELECT name, avg(value) AS mean FROM scores GROUP BY name"

Ray reads the table's files itself, so the table may be larger than this machine. Set RAY_ADDRESS for a
cluster that runs; without it Ray starts on this machine.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow
import ray

import otel_rollout
from otel_rollout.rollout_table import messages_of


def judge(messages: list[dict[str, Any]]) -> tuple[float, str]:
    """Return a score of a trajectory and the reason: here, what part of its replies tells what comes next.

    Put your own judge here, such as a call of a model.
    """
    replies = [message["content"] for message in messages if message["role"] == "assistant"]
    announced = sum(any(word in reply for word in ("Next", "Now", "calculate")) for reply in replies)
    return announced / max(len(replies), 1), f"{announced} of {len(replies)} replies"


def judged(spans: pyarrow.Table) -> pyarrow.Table:
    """Judge one trajectory; its rows are in any order."""
    rows = spans.to_pylist()
    score, reason = judge(messages_of(rows))
    return pyarrow.table({"trace_id": [rows[0]["trace_id"]], "plans_ahead": [score], "reason": [reason]})


def main(uri: str) -> None:
    """Judge the trajectories of the table at an address."""
    table = otel_rollout.open_table(uri)
    ray.init(log_to_driver=False)
    scores = table.ray().groupby("trace_id").map_groups(judged, batch_format="pyarrow")
    number = table.annotate(scores.to_pandas(), "plans_ahead", comment="reason")
    print(f"{number} trajectories judged")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./rollouts")
