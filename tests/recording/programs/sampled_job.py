"""Record 320 trajectories of a job; print, as JSON, which ones were sampled."""

import json

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op


@rollout_trace_op
def op() -> None:
    """Do nothing."""


def main() -> None:
    """Record, and print step, row and sibling of each sampled trajectory, and counts."""
    recorded = []
    for step in range(4):
        for row in range(40):
            for sibling in range(2):
                with rollout_trace_attr(step=step, sample_index=row, rollout_n=sibling) as trajectory:
                    op()
                if trajectory.trace_id:
                    recorded.append([step, row, sibling])
    report = otel_rollout.status()
    print(json.dumps([recorded, report.sampled_out, report.started]))


if __name__ == "__main__":
    main()
