"""Coroutines and generators run in their call's context, in transparent wrappers."""

import asyncio
from types import AsyncGeneratorType, CoroutineType, GeneratorType

import orjson
import pytest
import ray
from opentelemetry import context as otel_context
from opentelemetry import trace

from otel_rollout.ray import carry_context
from otel_rollout.record.capture.signature import make_binder
from otel_rollout.record.propagation.ray_incoming_calls import receiving
from otel_rollout.record.propagation.ray_outgoing_calls import ARGUMENT

TRACE = 0xABC
CARRIER = {ARGUMENT: orjson.dumps({"traceparent": f"00-{TRACE:032x}-{1:016x}-01"})}


def active() -> int:
    return trace.get_current_span().get_span_context().trace_id


@pytest.fixture(autouse=True)
def context_is_empty_afterwards():
    """After each call the thread is outside any trace."""
    yield
    assert otel_context.get_current() == {}


def test_function_runs_in_the_context_and_leaves_it():
    """A function that raises leaves the context as well."""

    def function(value):
        assert active() == TRACE
        raise KeyError(value)

    with pytest.raises(KeyError, match="mine"):
        receiving(function)("mine", **CARRIER)
    assert active() == 0


def test_wrapper_keeps_the_attributes_of_a_method():
    """Ray decides by the copied attributes how to run the method."""

    def executor():
        pass

    executor.name, executor.method = "name", len
    received = receiving(executor)
    assert (received.name, received.method) == ("name", len)


def test_generator_receives_values_and_exceptions():
    """Sending, throwing and returning work, each step in the context."""
    seen = []

    def function():
        while True:
            try:
                got = yield active()
                if got == "stop":
                    return "result"
                seen.append(got)
            except KeyError as error:
                seen.append(error.args[0])

    generator = receiving(function)(**CARRIER)
    assert isinstance(generator, GeneratorType)
    assert next(generator) == TRACE
    assert active() == 0
    assert generator.send("sent") == TRACE
    assert generator.throw(KeyError("thrown")) == TRACE
    with pytest.raises(StopIteration) as stop:
        generator.send("stop")
    assert stop.value.value == "result"
    assert seen == ["sent", "thrown"]


def test_generator_closed_early_cleans_up_in_the_context():
    """The generator's ``finally`` block sees the trace."""
    closed = []

    def function():
        try:
            yield 1
        finally:
            closed.append(active())

    generator = receiving(function)(**CARRIER)
    next(generator)
    generator.close()
    assert closed == [TRACE]


def test_exception_of_a_generator_is_raised_at_its_step():
    """The steps before it return their values."""

    def function():
        yield 1
        raise KeyError("mine")

    generator = receiving(function)(**CARRIER)
    assert next(generator) == 1
    with pytest.raises(KeyError, match="mine"):
        next(generator)


def test_coroutine_runs_in_the_context():
    """The coroutine runs in a separate task, as in Ray."""

    async def function(value):
        await asyncio.sleep(0)
        return value, active()

    coroutine = receiving(function)(5, **CARRIER)
    assert isinstance(coroutine, CoroutineType)
    assert asyncio.run(coroutine) == (5, TRACE)


@pytest.mark.parametrize("received", [receiving, carry_context])
def test_async_generator_receives_values_and_exceptions(received):
    """Between its steps the task is outside the trace."""
    seen = []

    async def function():
        while True:
            try:
                await asyncio.sleep(0)
                got = yield active()
                if got == "stop":
                    return
                seen.append(got)
            except KeyError as error:
                seen.append(error.args[0])

    async def consume():
        generator = received(function)(**CARRIER)
        assert isinstance(generator, AsyncGeneratorType)
        assert await anext_of(generator) == TRACE
        assert active() == 0
        assert await generator.asend("sent") == TRACE
        assert await generator.athrow(KeyError("thrown")) == TRACE
        with pytest.raises(StopAsyncIteration):
            await generator.asend("stop")

    asyncio.run(consume())
    assert seen == ["sent", "thrown"]


@pytest.mark.parametrize("received", [receiving, carry_context])
def test_cancelled_or_closed_async_generator_cleans_up_in_the_context(received):
    """The cancellation reaches the await inside the generator."""
    closed = []

    async def function():
        try:
            yield 1
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            closed.append("cancelled")
            raise
        finally:
            await asyncio.sleep(0)
            closed.append(active())

    async def consume():
        generator = received(function)(**CARRIER)
        async for _ in generator:
            pass

    async def cancel():
        task = asyncio.create_task(consume())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        generator = received(function)(**CARRIER)
        await anext_of(generator)
        await generator.aclose()

    asyncio.run(cancel())
    assert closed == ["cancelled", TRACE, TRACE]


def test_interleaved_generators_keep_their_contexts():
    """The generators' steps alternate in one task."""

    async def function():
        for _ in range(3):
            await asyncio.sleep(0)
            yield active()

    async def consume():
        other = {ARGUMENT: orjson.dumps({"traceparent": f"00-{7:032x}-{1:016x}-00"})}
        one, two = receiving(function)(**CARRIER), receiving(function)(**other)
        return [(await anext_of(one), await anext_of(two)) for _ in range(3)]

    assert asyncio.run(consume()) == [(TRACE, 7)] * 3


async def anext_of(generator):
    """Return the next value of an asynchronous generator."""
    return await generator.__anext__()


def test_parameter_that_ray_writes_into_the_methods_of_an_actor_is_no_argument():
    """A class of a script travels to the worker by value, with the signatures that Ray has changed."""

    class Engine:
        def generate(self, prompt):
            return prompt

    ray.remote(Engine)
    assert make_binder(Engine.generate)(None, "Why?") == {"prompt": "Why?"}
