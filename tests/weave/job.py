"""A job: ``python job.py TRAJECTORIES [rejected]``.

Records, then waits for a line, shuts down and reports.

With "rejected" one operation per trajectory has a name that Weave refuses. A line "link RUN" publishes a run,
and another trajectory follows.
"""

import json
import sys

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score


@rollout_trace_op(kind="TOOL")
def calculator(expression: str) -> int:
    return len(expression)


@rollout_trace_op(name="weave:///not an op")
def refused() -> None:
    pass


def main(trajectories: int, with_refused: bool) -> None:
    for index in range(trajectories):
        with rollout_trace_attr(sample_index=index, step=index % 2, rollout_n=0):
            calculator("3+4" * index)
            if with_refused:
                refused()
            score("reward", index / 10)
    print("recorded", flush=True)
    told = sys.stdin.readline().split()
    if told[:1] == ["link"]:
        otel_rollout.publish_run(weave=told[1])
        with rollout_trace_attr(sample_index=trajectories, step=2, rollout_n=0):
            calculator("late")
    report = otel_rollout.shutdown(60)
    weave = report.exporters["weave"]
    account = {"recorded": report.recorded, "lost": report.lost, "delivered": weave.delivered}
    account |= {"rejected": weave.rejected, "directory": report.directory, "problem": weave.problem}
    print(json.dumps(account), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), "rejected" in sys.argv)
