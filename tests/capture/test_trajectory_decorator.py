"""``rollout_trace_attr`` as a decorator, and both decorators' messages on misuse."""

import asyncio
import inspect

import cloudpickle
import pytest
from opentelemetry import trace

from otel_rollout import rollout_trace_attr, rollout_trace_op


@rollout_trace_op(name="turn")
def turn(text: str) -> str:
    return text.upper()


def traces(recorded):
    """Return, by trace, the names of its spans and whether its root has failed."""
    found = {}
    for span in recorded():
        found.setdefault(span.span.trace_id, []).append(span.name)
    return sorted(found.values())


def inside() -> bool:
    return trace.get_current_span().get_span_context().is_valid


ONE = ["turn", "rollout_trace"]


def test_each_call_of_a_function_is_a_trajectory(recorded):
    """The trajectory has the decorator's identity.

    The function's return value reaches the caller.
    """

    @rollout_trace_attr(step=1, sample_index=7, agent_name="math")
    def rollout(text: str, *, again: bool = False) -> str:
        """Documented."""
        return turn(text)

    assert (rollout("a"), rollout("b", again=True)) == ("A", "B")
    assert not inside()
    assert traces(recorded) == [ONE, ONE]
    for span in recorded():
        assert (span.attributes["rollout.step"], span.attributes["rollout.sample_index"]) == (1, 7)
    assert recorded()[1].attributes["rollout.agent_name"] == "math"
    assert (rollout.__name__, rollout.__doc__) == ("rollout", "Documented.")
    assert list(inspect.signature(rollout).parameters) == ["text", "again"]


async def test_each_call_of_a_coroutine_function_is_a_trajectory(recorded):
    """Many calls may run at once."""

    @rollout_trace_attr(step=1)
    async def rollout(text: str) -> str:
        await asyncio.sleep(0)
        return turn(text)

    assert inspect.iscoroutinefunction(rollout)
    assert await asyncio.gather(*map(rollout, "abc")) == ["A", "B", "C"]
    assert traces(recorded) == [ONE] * 3


def test_each_call_of_a_generator_function_is_a_trajectory(recorded):
    """The trajectory lasts from the first step to the end.

    Between steps the consumer is outside.
    """

    @rollout_trace_attr(step=1)
    def rollout(texts: str):
        for text in texts:
            yield turn(text)
        return "done"

    assert inspect.isgeneratorfunction(rollout)
    first, second = rollout("ab"), rollout("cd")
    assert [next(first), next(second)] == ["A", "C"]
    assert not inside()
    assert [next(second), next(first)] == ["D", "B"]
    with pytest.raises(StopIteration, match="done"):
        next(first)
    second.close()
    rollout("never begun").close()
    with pytest.raises(TypeError):
        rollout()
    assert traces(recorded) == [["turn", *ONE]] * 2
    assert [span.span.status.code for span in recorded()] == [0] * 6


async def test_each_call_of_an_asynchronous_generator_function_is_a_trajectory(recorded):
    """The trajectory lasts from the first step to the end."""

    @rollout_trace_attr(step=1)
    async def rollout(texts: str):
        for text in texts:
            await asyncio.sleep(0)
            yield turn(text)

    assert inspect.isasyncgenfunction(rollout)
    assert [item async for item in rollout("ab")] == ["A", "B"]
    assert not inside()
    assert traces(recorded) == [["turn", *ONE]]


@pytest.mark.parametrize("kind", ["function", "coroutine", "generator", "asynchronous generator"])
def test_exception_ends_the_trajectory_as_an_error(recorded, kind):
    """The exception of any kind of function is passed on."""

    def fail() -> None:
        raise KeyError("gone")

    async def fail_later() -> None:
        fail()

    def fail_at_a_step():
        yield 1
        fail()

    async def fail_at_a_later_step():
        yield 1
        fail()

    async def consume(items) -> None:
        async for _ in items:
            pass

    decorate = rollout_trace_attr(step=1)
    calls = {
        "function": lambda: decorate(fail)(),
        "coroutine": lambda: asyncio.run(decorate(fail_later)()),
        "generator": lambda: list(decorate(fail_at_a_step)()),
        "asynchronous generator": lambda: asyncio.run(consume(decorate(fail_at_a_later_step)())),
    }
    with pytest.raises(KeyError, match="gone"):
        calls[kind]()
    (root,) = recorded()
    assert root.span.status.message == "KeyError: 'gone'"


def test_methods_of_all_kinds_can_be_decorated(recorded):
    """A method may be decorated as an operation, too."""

    class Agent:
        @rollout_trace_attr(step=1)
        def plain(self) -> str:
            return turn("a")

        @rollout_trace_attr(step=1)
        @staticmethod
        def static() -> str:
            return turn("b")

        @classmethod
        @rollout_trace_attr(step=1)
        def of_class(cls) -> str:
            return turn("c")

    assert (Agent().plain(), Agent.static(), Agent.of_class()) == ("A", "B", "C")
    assert traces(recorded) == [ONE] * 3


def test_decorated_function_pickles(recorded):
    """Closures sent to workers are pickled like this."""

    @rollout_trace_attr(step=1)
    def rollout(text: str) -> str:
        return text.upper()

    assert cloudpickle.loads(cloudpickle.dumps(rollout))("a") == "A"
    assert traces(recorded) == [["rollout_trace"]]


def test_function_with_trace_false_works_unrecorded(recorded):
    """Generators with trace=False work, too."""

    @rollout_trace_attr(trace=False)
    def rollout():
        yield turn("a")

    assert list(rollout()) == ["A"]
    assert recorded() == []


@pytest.mark.parametrize(
    ("misuse", "says"),
    [
        (lambda: rollout_trace_op("LLM"), "@rollout_trace_op(kind='LLM'), not @rollout_trace_op('LLM')"),
        (lambda: rollout_trace_op("search"), "@rollout_trace_op(name='search'), not"),
        (lambda: rollout_trace_op("tool"), "@rollout_trace_op(kind='TOOL'), not @rollout_trace_op('tool')"),
        (
            lambda: rollout_trace_attr(turn),
            "the decorator needs parentheses: @rollout_trace_attr(",
        ),
        (lambda: rollout_trace_attr(step=1)(5), "5 is not a function. Mark a block"),
        (lambda: rollout_trace_attr(step=1)(int), "<class 'int'> is not a function"),
    ],
)
def test_misuse_raises_with_the_correct_form(misuse, says):
    """The TypeError at decoration holds code that can be pasted."""
    with pytest.raises(TypeError) as raised:
        misuse()
    assert says in str(raised.value)
