"""Write a traced class of ``__main__`` to standard output, by cloudpickle."""

import sys

import cloudpickle

from otel_rollout import rollout_trace_op


class Agent:
    @rollout_trace_op
    def act(self, number: int) -> int:
        return number + 1

    @rollout_trace_op
    async def wait(self, number: int) -> int:
        return number + 2


if __name__ == "__main__":
    sys.stdout.buffer.write(cloudpickle.dumps(Agent))
