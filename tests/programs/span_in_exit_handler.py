"""Record, shut down, and record in an exit handler after the package's."""

import atexit


def record_late() -> None:
    """Record when the package has done what it does at exit."""
    from otel_rollout import rollout_trace_attr

    with rollout_trace_attr() as late:
        print("late", late.trace_id)


def main() -> None:
    """Register the handler first, so that it runs after the package's."""
    atexit.register(record_late)
    import otel_rollout

    with otel_rollout.rollout_trace_attr():
        pass
    otel_rollout.shutdown(30)


if __name__ == "__main__":
    main()
