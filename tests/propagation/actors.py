"""Tasks and actors of every kind, which record where they run.

Workers import this module, so it imports neither pytest nor private modules of Ray's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import ray
from opentelemetry import trace

from otel_rollout import rollout_trace_op
from otel_rollout.ray import carry_context


@rollout_trace_op(name="work")
def work(label: Any = None) -> Any:
    """Record an operation below the caller's span."""
    return label


def active_trace() -> int:
    """Return the id of the current trace; 0 if there is none."""
    return trace.get_current_span().get_span_context().trace_id


@ray.remote
def task(*args: Any, **kwargs: Any) -> Any:
    work("task")
    return args, kwargs


@ray.remote
def request(url: str) -> int:
    """Send a request without recording an operation; return the answer's status."""
    import urllib3

    with urllib3.PoolManager() as manager:
        return manager.request("GET", url).status


@ray.remote
def library_task() -> Any:
    with trace.get_tracer("library").start_as_current_span("library"):
        import raylib

        return raylib.call(1)


@ray.remote
def task_without_arguments() -> Any:
    return work("no arguments")


@ray.remote
def nested() -> Any:
    return ray.get(task.remote("inner"))


@ray.remote(max_retries=0)
def failing_task() -> None:
    work("failing")
    raise KeyError("mine")


@ray.remote
def generator_task(count: int) -> Iterator[int]:
    for index in range(count):
        yield work(index)


@ray.remote(num_returns=2)
def two_results() -> tuple[Any, Any]:
    return work(1), work(2)


@ray.remote
def where_am_i() -> int:
    return active_trace()


class Base:
    def inherited(self) -> Any:
        return work("inherited")


@ray.remote
class Sync(Base):
    """A plain actor."""

    def __init__(self, label: Any = None) -> None:
        self.closed_in: list[int] = []
        if label is not None:
            work(label)

    def method(self, *args: Any, **kwargs: Any) -> Any:
        work("method")
        return args, kwargs

    def without_arguments(self) -> Any:
        return work("no arguments")

    @staticmethod
    def static(value: Any) -> Any:
        return work(value)

    @classmethod
    def of_class(cls, value: Any) -> Any:
        return work((cls.__name__, value))

    def stream(self, count: int) -> Iterator[Any]:
        try:
            for index in range(count):
                yield work(index)
        finally:
            self.closed_in.append(active_trace())

    def active(self) -> int:
        return active_trace()

    def closed(self) -> list[int]:
        return self.closed_in

    def fail(self) -> None:
        raise ValueError("mine")


@ray.remote(max_concurrency=4)
class Threaded:
    """An actor whose calls run in threads."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(4)

    def together(self, label: int) -> int:
        self.barrier.wait(20)
        work(label)
        self.barrier.wait(20)
        return active_trace()


@ray.remote
class Tool:
    """An asyncio actor that others call."""

    async def run(self, label: Any) -> Any:
        await asyncio.sleep(0.001)
        return work(label)


@ray.remote
class Asyncio:
    """An asyncio actor that calls another one."""

    def __init__(self, tool: Any = None) -> None:
        self.tool = tool
        self.closed_in: list[int] = []

    async def method(self, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        work("method")
        return kwargs

    def not_async(self) -> int:
        return active_trace()

    async def through_tool(self, label: Any) -> Any:
        before = work(("agent", label))
        await asyncio.sleep(0.002)
        await self.tool.run.remote(("tool", label))
        return before

    async def stream(self, count: int, pause: float = 0) -> AsyncIterator[Any]:
        try:
            for index in range(count):
                await asyncio.sleep(pause)
                yield work(index)
        finally:
            self.closed_in.append(active_trace())

    async def forever(self) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            self.closed_in.append(active_trace())
            work("cancelled")

    async def in_executor(self) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, work, "executor")

    async def closed(self) -> list[int]:
        return self.closed_in

    async def active(self) -> int:
        return active_trace()


@ray.remote
@carry_context
class Decorated(Base):
    """An actor whose calls need no patch of Ray."""

    def method(self, *args: Any, **kwargs: Any) -> Any:
        work("method")
        return args, kwargs

    def one(self, value: int) -> int:
        return work(value)

    @staticmethod
    def static(value: Any) -> Any:
        return work(value)

    @classmethod
    def of_class(cls, value: Any) -> Any:
        return work(value)

    def stream(self, count: int) -> Iterator[Any]:
        for index in range(count):
            yield work(index)


@ray.remote
@carry_context
class DecoratedAsyncio:
    async def method(self, value: int) -> Any:
        await asyncio.sleep(0)
        return work(value)

    async def stream(self, count: int) -> AsyncIterator[Any]:
        for index in range(count):
            await asyncio.sleep(0)
            yield work(index)


@ray.remote
@carry_context
def decorated_task(value: int = 0) -> Any:
    return work(value)
