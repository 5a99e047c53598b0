"""Run trajectories, some of which wait for a line: ``run_trajectories.py SPOOL``."""

import sys

from opentelemetry import context

import otel_rollout
from otel_rollout import rollout_trace_attr, score


def main(spool: str) -> None:
    """Run one to its end, one in which another one has ended, and one in which nothing has ended."""
    otel_rollout.configure("spool", spool_dir=spool, project_name="p", experiment_name="e")
    with rollout_trace_attr(step=1, sample_index=3, rollout_n=0):
        pass
    with rollout_trace_attr(step=1, sample_index=3, rollout_n=1, name="outer"):
        with rollout_trace_attr(step=9, sample_index=9, rollout_n=9, name="inner"):
            pass
        context.attach(context.Context())
        with rollout_trace_attr(step=1, sample_index=3, rollout_n=2):
            score("reward", 0.5, step=1, sample_index=3, rollout_n=2)
            print("they run", flush=True)
            sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1])
