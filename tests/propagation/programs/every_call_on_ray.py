"""Run eight trajectories on Ray, with every kind of call, in a program that knows nothing of its tracing.

``every_call_on_ray.py [address] [runtime_env as JSON]``. The driver imports nothing of this project: the
loop of a trajectory is in an actor.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import ray

TRAJECTORIES = 8


def traced(kind: str) -> Any:
    """Return the decorator, which only workers import."""
    from otel_rollout import rollout_trace_op

    return rollout_trace_op(kind=kind, name=kind.lower())


def look_up(question: str) -> str:
    """Do a part of a tool's work, in a task of a task."""
    return str(traced("RETRIEVER")(str.upper)(question))


def use_tool(question: str) -> str:
    """Run a tool in a task."""
    return str(traced("TOOL")(lambda asked: ray.get(ray.remote(look_up).remote(asked)))(question))


def stream(question: str) -> Iterator[str]:
    """Run a tool that answers in pieces."""
    for piece in traced("TOOL")(str.split)(question):  # noqa: UP028 - Ray sends values in, which a list cannot take
        yield piece


class Engine:
    """A model server: plain, with coroutines, and with threads."""

    def generate(self, question: str) -> str:
        return str(traced("LLM")(str.lower)(question))


class AsyncEngine:
    """A model server of coroutines, which streams, too."""

    async def generate(self, question: str) -> str:
        return str(traced("LLM")(str.lower)(question))

    async def stream(self, question: str) -> AsyncIterator[str]:
        for piece in traced("LLM")(str.split)(question):
            yield piece


class Loop:
    """Runs whole trajectories, and calls the other actors."""

    def __init__(self, engines: list[Any]) -> None:
        self._engines = engines

    def run(self, number: int) -> None:
        from otel_rollout import rollout_trace_attr

        with rollout_trace_attr(step=1, sample_index=number // 4, rollout_n=number % 4):
            for engine in [*self._engines, ray.get_actor("engine", namespace="test")]:
                assert ray.get(engine.generate.remote(f"A {number}")) == f"a {number}"
            assert ray.get(ray.remote(use_tool).remote(f"a {number}")) == f"A {number}"
            assert [ray.get(piece) for piece in ray.remote(stream).remote("a b")] == ["a", "b"]
            assert [ray.get(piece) for piece in self._engines[1].stream.remote("a b")] == ["a", "b"]


OPERATIONS = {"llm": 5, "tool": 2, "retriever": 1, "rollout_trace": 1}
"""Spans of each trajectory."""


def main(address: str = "", runtime_env: str = "{}") -> None:
    """Run the trajectories; without an address, let Ray start by itself if it has no runtime_env."""
    if address or runtime_env != "{}":
        ray.init(address=address or None, runtime_env=json.loads(runtime_env), namespace="test")
    small = {"num_cpus": 0.1}
    engine, async_engine = ray.remote(Engine), ray.remote(AsyncEngine)
    named = engine.options(name="engine", namespace="test", **small).remote()
    engines = [
        engine.options(**small).remote(),
        async_engine.options(**small).remote(),
        engine.options(max_concurrency=4, **small).remote(),
    ]
    ray.get(named.__ray_ready__.remote())
    loops = [ray.remote(Loop).options(**small).remote(engines) for _ in range(2)]
    ray.get([loops[number % 2].run.remote(number) for number in range(TRAJECTORIES)])


if __name__ == "__main__":
    main(*sys.argv[1:])
