"""Record a run, shut down, and record another one, which the exit delivers.

An exit handler records, too.
"""

import atexit

import otel_rollout
from otel_rollout import rollout_trace_attr


def record_late() -> None:
    """Record when the package has done what it does at exit."""
    with rollout_trace_attr() as late:
        print("late", late.trace_id)


def main() -> None:
    """Record twice."""
    atexit.register(record_late)
    with rollout_trace_attr():
        pass
    print("recorded", otel_rollout.shutdown(30).recorded)
    with rollout_trace_attr():
        pass
    print("again", otel_rollout.status().recorded)


if __name__ == "__main__":
    main()
