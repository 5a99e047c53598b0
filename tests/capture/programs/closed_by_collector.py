"""Let the garbage collector end traced work inside ``ContextVar.set``: ``ROUNDS [KIND…]``.

Each round leaves work that has not ended in a cycle of references, and sets context variables. Prints, as
JSON, how often the work of each kind was cleaned up, and how many spans were recorded.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from types import coroutine
from typing import Any

from opentelemetry import trace

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record import runtime

VARIABLES = [ContextVar[object](f"variable-{number}", default=None) for number in range(20)]
cleaned = 0


class Kept:
    """Refers to itself, and to what its creator keeps in it."""

    def __init__(self, what: Any = None) -> None:
        self.what = what
        self.itself = self


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Clean up in memory that is free: in that of a context's entries, had the block's end replaced these."""
    global cleaned
    try:
        yield
    finally:
        for size in range(0, 480, 8):
            Kept(b"\xff" * size)
        cleaned += 1


@rollout_trace_op
def stream() -> Iterator[int]:
    """Yield tokens."""
    with cleaning_up():
        yield from range(10)


@rollout_trace_attr(step=1)
def trajectory_stream() -> Iterator[int]:
    """Yield the tokens of a trajectory."""
    yield from stream()


def broken_off(tokens: Iterator[int]) -> None:
    """Break a stream off by an exception, and keep that."""
    kept = Kept()
    try:
        for _ in tokens:
            raise ValueError("enough")
    except ValueError as error:
        kept.what = error  # its traceback has this frame, with the stream


@coroutine
def pause() -> Iterator[None]:
    """Suspend the coroutine."""
    yield


@rollout_trace_op
async def call() -> None:
    """Wait for what does not come."""
    await pause()


async def rollout() -> None:
    """Wait inside a trajectory."""
    with cleaning_up():
        async with rollout_trace_attr(step=1):
            await call()


def suspended_coroutine() -> None:
    """Start a coroutine, and leave it."""
    running = rollout()
    running.send(None)
    Kept(running)


def library_stream() -> Iterator[None]:
    """Yield inside a library's span."""
    with cleaning_up(), trace.get_tracer("library").start_as_current_span("stream"):
        yield


def suspended_library() -> None:
    """Leave a library's stream inside a trajectory."""
    with rollout_trace_attr(step=1):
        tokens = library_stream()
        next(tokens)
        Kept(tokens)


class Tool:
    """Records when it is finalized."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        with rollout_trace_attr(step=1):
            self.close()

    @rollout_trace_op
    def close(self) -> None:
        """Release what the tool holds."""
        with cleaning_up():
            pass


def set_variables(allocations: int) -> None:
    """Set context variables; the collector runs after a few allocations of the first calls."""
    value = object()
    gc.set_threshold(gc.get_count()[0] + allocations)
    gc.enable()
    for variable in VARIABLES:
        variable.set(value)
    gc.disable()


# --- In asyncio ---------------------------------------------------------------------------------------------


@rollout_trace_op
async def async_stream() -> AsyncIterator[int]:
    """Yield tokens, and wait while cleaning up."""
    global cleaned
    try:
        for number in range(10):
            await asyncio.sleep(0)
            yield number
    finally:
        await asyncio.sleep(0)
        cleaned += 1


async def broken_off_async(number: int) -> None:
    """Break both kinds of streams off in a trajectory."""
    with rollout_trace_attr(step=1):
        broken_off(stream())
        kept, tokens = Kept(), async_stream()
        try:
            async for _ in tokens:
                raise ValueError("enough")
        except ValueError as error:
            kept.what = error
    set_variables(number % 10)


async def in_tasks(rounds: int) -> None:
    """Break streams off in tasks; the event loop closes the asynchronous ones that the collector found."""
    for number in range(rounds):
        await asyncio.create_task(broken_off_async(number))
    gc.collect()
    while cleaned < 2 * rounds:
        await asyncio.sleep(0)


# --- All kinds ----------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[], object]] = {
    "operation": lambda: broken_off(stream()),
    "trajectory": lambda: broken_off(trajectory_stream()),
    "coroutine": suspended_coroutine,
    "library": suspended_library,
    "finalizer": Tool,
}


def run(kind: str, rounds: int) -> None:
    """Run the rounds of one kind."""
    if kind == "asyncio":
        asyncio.run(asyncio.wait_for(in_tasks(rounds), 60))
        return
    for number in range(rounds):
        KINDS[kind]()
        set_variables(number % 10)
    gc.collect()


def main(kinds: Sequence[str], rounds: int) -> None:
    """Run each kind in a context of its own; print what was cleaned up and recorded."""
    global cleaned
    otel_rollout.configure("spool")
    with rollout_trace_attr(step=0):
        active = runtime.current()
    assert active is not None
    gc.disable()
    counted = {}
    for kind in kinds:
        cleaned, recorded = 0, active.writer.counts().recorded
        Context().run(run, kind, rounds)
        counted[kind] = cleaned, active.writer.counts().recorded - recorded
    print(json.dumps(counted))


if __name__ == "__main__":
    main(sys.argv[2:] or [*KINDS, "asyncio"], int(sys.argv[1]))
