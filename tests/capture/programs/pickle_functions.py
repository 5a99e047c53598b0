"""Write two traced functions of ``__main__`` to standard output, by cloudpickle."""

import sys
from collections.abc import Iterator

import cloudpickle

from otel_rollout import rollout_trace_op


@rollout_trace_op
def double(value: int) -> int:
    return 2 * value


@rollout_trace_op
def numbers(to: int) -> Iterator[int]:
    yield from range(to)


if __name__ == "__main__":
    sys.stdout.buffer.write(cloudpickle.dumps((double, numbers)))
