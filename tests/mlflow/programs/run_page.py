"""Record siblings, run code and search: ``run_page.py BLOCKS SEARCHES``.

Both arguments are JSON lists: blocks of Python, and filters for ``mlflow.search_traces``. Prints the number
of traces that each search finds.
"""

import contextlib
import json
import sys
import time
from typing import Any

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score


@rollout_trace_op(kind="TOOL")
def tool() -> None:
    pass


def record(sibling: int) -> None:
    """Record one trajectory; the first one of the group fails."""
    with rollout_trace_attr(sample_index=7, step=1, rollout_n=sibling) as trajectory:
        tool()
        trajectory.set_output({"answer": sibling})
        score("reward", sibling / 2)
        score("solved", sibling == 2)
        if sibling == 0:
            raise ValueError


def main(blocks: list[str], searches: list[str]) -> None:
    """Record three siblings, wait until they are delivered, and run the blocks."""
    for sibling in range(3):
        with contextlib.suppress(ValueError):
            record(sibling)
    deadline = time.monotonic() + 60
    while otel_rollout.status().exporters["mlflow"].delivered < 12 and time.monotonic() < deadline:
        time.sleep(0.2)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
        if "publish_run" in block:
            print("ACCOUNT", otel_rollout.shutdown(60).exporters["mlflow"])
    mlflow = names["mlflow"]
    for search in searches:
        print("FOUND", len(mlflow.search_traces(filter_string=search)))
    print("OF THE RUN", len(mlflow.search_traces(run_id=names["run"].info.run_id)))


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
