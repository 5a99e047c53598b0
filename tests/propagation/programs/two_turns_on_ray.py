"""Run eight trajectories of two turns on Ray, as a program that knows nothing of its tracing's settings."""

from __future__ import annotations

import ray

from otel_rollout import rollout_trace_attr, rollout_trace_op
from tests.ray_start import start_ray


@ray.remote
class Engine:
    """Answers each conversation with a call of the tool."""

    @rollout_trace_op(kind="LLM")
    def generate(self, question: str) -> str:
        return question.removeprefix("What is ")


@ray.remote
@rollout_trace_op(kind="TOOL")
def calculate(expression: str) -> int:
    return sum(map(int, expression.split(" + ")))


def main() -> None:
    """Run the trajectories in the driver, the model in an actor, the tool in tasks."""
    start_ray(lambda: ray.init(num_cpus=2, include_dashboard=False))
    engine = Engine.remote()
    for number in range(8):
        with rollout_trace_attr(step=1, sample_index=number // 4, rollout_n=number % 4):
            for _ in range(2):
                expression = ray.get(engine.generate.remote(f"What is {number} + 1"))
                assert ray.get(calculate.remote(expression)) == number + 1


if __name__ == "__main__":
    main()
