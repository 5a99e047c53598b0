"""A decorated generator is one span, without any change for the consumer."""

import asyncio
import contextvars
import gc
import inspect
import types
import weakref

import cloudpickle
import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.capture import generators
from tests.spool_reader import tree


def current() -> int:
    return trace.get_current_span().get_span_context().span_id


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """Check after each test that the consumer is outside any trace."""
    yield
    assert otel_context.get_current() == {}


@rollout_trace_op(name="count")
def count(to: int):
    yield from range(to)
    return "done" if to else None


@rollout_trace_op(name="acount")
async def acount(to: int):
    for number in range(to):
        await asyncio.sleep(0)
        yield number


def generator_attributes(span):
    prefix = "rollout.generator."
    return {k.removeprefix(prefix): v for k, v in span.attributes.items() if k.startswith(prefix)}


def test_generator_is_one_span_with_its_items(recorded):
    """The span has arguments, items and their number.

    It also has the return value and whether the generator was exhausted.
    """
    with rollout_trace_attr(name="trajectory"):
        assert list(count(3)) == [0, 1, 2]
    call, root = recorded()
    assert (call.input, call.output) == ({"to": 3}, [0, 1, 2])
    assert generator_attributes(call) == {"items": 3, "exhausted": True, "returned": '"done"'}
    assert tree([call, root]) == {"trajectory": ["count"]}
    assert root.output == [0, 1, 2]


async def test_async_generator_is_one_span_with_its_items(recorded):
    """The span has arguments, items, their number, and whether it was exhausted."""
    with rollout_trace_attr(name="trajectory"):
        assert [number async for number in acount(3)] == [0, 1, 2]
    call, root = recorded()
    assert (call.input, call.output) == ({"to": 3}, [0, 1, 2])
    assert generator_attributes(call) == {"items": 3, "exhausted": True}
    assert tree([call, root]) == {"trajectory": ["acount"]}


def test_decorated_generator_function_has_the_plain_ones_signature():
    """Frameworks recognise generator functions by code flags and signature."""
    assert inspect.isgeneratorfunction(count)
    assert inspect.isasyncgenfunction(acount)
    assert not inspect.iscoroutinefunction(acount)
    assert str(inspect.signature(count)) == "(to: int)"
    assert (count.__name__, count(1).__name__, isinstance(count(1), types.GeneratorType)) == (
        "count",
        "count",
        True,
    )
    with pytest.raises(TypeError, match=r"^count\(\) missing 1 required positional argument: 'to'$"):
        count()


def test_span_is_current_only_during_the_generators_steps(recorded):
    """While the generator is suspended, the consumer's context is current."""

    @rollout_trace_op(name="inner")
    def inner() -> int:
        return current()

    @rollout_trace_op(name="steps")
    def steps():
        yield current()
        inner()
        yield current()

    @rollout_trace_op(name="consumer")
    def consumer() -> None:
        pass

    with rollout_trace_attr(name="trajectory"):
        root = current()
        iterator = steps()
        first = next(iterator)
        assert current() == root != first
        consumer()
        assert next(iterator) == first
        assert current() == root
        assert next(iterator, None) is None
    assert tree(recorded()) == {"trajectory": [{"steps": ["inner"]}, "consumer"]}


def test_other_context_variables_are_shared_with_the_consumer(recorded):
    """Only OpenTelemetry's context is the generator's own."""
    variable = contextvars.ContextVar("variable", default=0)

    @rollout_trace_op
    def steps():
        while True:
            variable.set(variable.get() + 1)
            yield variable.get()

    iterator = steps()
    assert next(iterator) == variable.get() == 1
    variable.set(10)
    assert next(iterator) == variable.get() == 11
    iterator.close()


def test_trajectory_open_across_a_yield_is_the_generators_alone(recorded):
    """The consumer is outside that trajectory."""

    @rollout_trace_op(name="rollouts")
    def rollouts():
        for number in range(2):
            with rollout_trace_attr(sample_index=number, name=f"sample {number}"):
                yield number
                list(count(0))

    @rollout_trace_op(name="consumer")
    def consumer() -> None:
        pass

    with rollout_trace_attr(name="trajectory"):
        for _ in rollouts():
            consumer()
    assert tree(recorded()) == {
        "trajectory": [
            {"rollouts": [{"sample 0": ["count"]}, {"sample 1": ["count"]}]},
            "consumer",
            "consumer",
        ]
    }


@pytest.mark.parametrize("end", ["close", "collect"])
def test_generator_closed_early_is_no_error(recorded, end):
    """The generator cleans up, and the span says that it was not exhausted."""
    cleaned = []

    @rollout_trace_op
    def numbers():
        try:
            yield from range(10)
        finally:
            cleaned.append(current())

    with rollout_trace_attr():
        iterator = numbers()
        assert [next(iterator), next(iterator)] == [0, 1]
        if end == "close":
            iterator.close()
        else:
            del iterator
    call, _root = recorded()
    assert cleaned == [int.from_bytes(call.span.span_id, "big")], "cleaned up inside its own span"
    assert (call.output, call.span.status.code) == ([0, 1], 0)
    assert generator_attributes(call) == {"items": 2, "exhausted": False}


@pytest.mark.parametrize("end", ["close", "collect"])
async def test_async_generator_closed_early_is_no_error(recorded, end):
    """The generator is closed by its consumer or only by the event loop."""
    cleaned = asyncio.Event()

    @rollout_trace_op
    async def numbers():
        try:
            for number in range(10):
                yield number
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    with rollout_trace_attr():
        iterator = numbers()
        async for number in iterator:
            if number == 1:
                break
        if end == "close":
            await iterator.aclose()
        else:
            del iterator
        await asyncio.wait_for(cleaned.wait(), 10)
        await asyncio.sleep(0)
    call, _root = recorded()
    assert (call.output, call.span.status.code) == ([0, 1], 0)
    assert generator_attributes(call) == {"items": 2, "exhausted": False}


def test_event_loop_closes_an_abandoned_generator_once(recorded, capfd, caplog):
    """The loop finds one generator to close, not wrapper and generator."""
    kept = []

    @rollout_trace_op
    async def numbers():
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            kept.append("cleaned")

    async def main() -> None:
        iterator = numbers()
        kept.append(iterator)
        await iterator.__anext__()

    asyncio.run(main())
    assert kept[1:] == ["cleaned"]
    (call,) = recorded()
    assert (call.output, call.span.status.code) == ([1], 0)
    assert not caplog.records
    assert capfd.readouterr().err == ""


def test_failing_generator_is_recorded_with_its_items(recorded):
    """The exception is on the span and reaches the consumer unchanged."""

    @rollout_trace_op
    def numbers():
        yield 1
        raise KeyError("mine")

    with rollout_trace_attr():
        iterator = numbers()
        assert next(iterator) == 1
        with pytest.raises(KeyError, match="mine") as caught:
            next(iterator)
        assert caught.value.__context__ is None
    call, root = recorded()
    assert (call.output, call.span.status.code) == ([1], 2)
    assert call.span.status.message == "KeyError: 'mine'"
    assert generator_attributes(call) == {"items": 1, "exhausted": False}
    assert root.span.status.code == 0, "the consumer has dealt with it"


async def test_cancelled_async_generator_is_recorded_as_cancelled(recorded):
    """The cancellation arrives where the generator waits, and is passed on."""
    waiting = asyncio.Event()

    @rollout_trace_op
    async def numbers():
        yield 1
        waiting.set()
        await asyncio.Event().wait()

    async def consume() -> None:
        async for _ in numbers():
            pass

    task = asyncio.create_task(consume())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (call,) = recorded()
    assert call.span.status.message.startswith("CancelledError")
    assert call.output == [1]


def test_items_of_a_long_generator_are_bounded(recorded, monkeypatch):
    """The first items are recorded, up to a number and a size.

    The rest is counted.
    """
    monkeypatch.setattr(generators, "MAX_ITEMS", 3)
    with rollout_trace_attr():
        assert sum(count(10)) == 45
    call = recorded()[0]
    assert call.output == [0, 1, 2, "… (7 more items)"]
    assert generator_attributes(call)["items"] == 10


def test_generator_never_started_is_not_recorded(recorded):
    """No part of the generator has run."""
    count(3)
    count(3).close()
    assert recorded() == []


def test_generator_keeps_no_argument_or_item_alive(recorded):
    """Arguments and items live as long as with an undecorated generator."""

    class Thing:
        pass

    @rollout_trace_op
    def things(first):
        yield first
        del first
        yield "second"

    gc.disable()
    try:
        thing = Thing()
        alive = weakref.ref(thing)
        iterator = things(thing)
        del thing
        assert next(iterator) is alive()
        assert next(iterator) == "second"
        assert alive() is None
        iterator.close()
    finally:
        gc.enable()


def test_generator_based_coroutine_can_be_awaited(recorded):
    """``types.coroutine`` makes awaitables of generators, decorated ones too."""

    @rollout_trace_op(name="pause")
    @types.coroutine
    def pause():
        yield
        return 5

    async def main() -> int:
        return await pause()

    assert asyncio.run(main()) == 5
    assert recorded()[0].attributes["rollout.generator.returned"] == "5"


def test_generator_function_pickles_by_value(recorded):
    """Functions of notebooks and of __main__ are pickled like this for Ray."""
    namespace = {"__name__": "__main__", "rollout_trace_op": rollout_trace_op}
    source = "@rollout_trace_op\ndef numbers(to, *, by=1):\n    yield from range(0, to, by)\n"
    exec(
        source + source.replace("def numbers", "async def anumbers").replace("yield from", "yield"), namespace
    )
    restored, arestored = cloudpickle.loads(cloudpickle.dumps((namespace["numbers"], namespace["anumbers"])))
    assert list(restored(4, by=2)) == [0, 2]
    assert inspect.isasyncgenfunction(arestored)
    assert recorded()[0].output == [0, 2]
