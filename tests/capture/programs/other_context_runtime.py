"""Record in a replaced context runtime: ``other_context_runtime.py SPOOL``."""

import sys
from collections.abc import Iterator

from opentelemetry import context

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op


@rollout_trace_op
def inner() -> int:
    return 1


@rollout_trace_op
def outer() -> Iterator[int]:
    yield inner()


def main(spool_dir: str) -> None:
    """Record two trajectories, each with an operation inside an operation."""
    context._RUNTIME_CONTEXT = type(context._RUNTIME_CONTEXT)()  # as Sentry's SDK does
    otel_rollout.configure("console", spool_dir=spool_dir)
    for name in ("first", "second"):
        with rollout_trace_attr(name=name):
            list(outer())
    active = otel_rollout.record.runtime.current()
    assert active is not None
    active.writer.flush(10)


if __name__ == "__main__":
    main(*sys.argv[1:])
