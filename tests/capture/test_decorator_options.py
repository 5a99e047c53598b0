"""What can be told to an operation, and which calls are one: options, super(), callables of every sort."""

import asyncio
import functools
import inspect
import signal
import subprocess
import sys
import textwrap

import cloudpickle
import pytest

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.base import errors
from otel_rollout.capture import encoding
from tests.spool_reader import tree


@pytest.mark.parametrize(
    ("capture", "has_input", "has_output"),
    [("all", True, True), ("inputs", True, False), ("outputs", False, True), ("none", False, False)],
)
def test_capture_says_what_of_the_content_is_recorded(recorded, capture, has_input, has_output):
    """The span is there in any case, and neither it nor the root shows more."""

    @rollout_trace_op(capture=capture)
    def echo(text: str) -> str:
        return text

    @rollout_trace_op(capture=capture)
    def repeat(text: str):
        yield text
        return text

    with rollout_trace_attr():
        echo("secret")
        list(repeat("secret"))
    for span in recorded():
        assert ("input.value" in span.attributes, "output.value" in span.attributes) == (
            has_input,
            has_output,
        )
        if not (has_input or has_output):
            assert "secret" not in str(span.attributes)


def test_excluded_arguments_are_not_recorded(recorded):
    """Neither by name, nor among further keyword arguments, nor in a call that does not fit."""

    @rollout_trace_op(exclude=["key", "token"])
    def call(url, key=None, **options):
        return url

    with rollout_trace_attr():
        call("u", "secret", token="secret", retries=2)
        with pytest.raises(TypeError):
            call("u", "secret", "secret")
    fits, misfit, _root = recorded()
    assert fits.input == {"url": "u", "options": {"retries": 2}}
    assert misfit.input == {"args": "<3 arguments>", "kwargs": []}


# --- super() ------------------------------------------------------------------------------------------------


class Base:
    @rollout_trace_op
    def generate(self, depth=0):
        return [depth]

    @rollout_trace_op
    async def agenerate(self, depth=0):
        await asyncio.sleep(0)
        return [depth]

    @rollout_trace_op
    def stream(self):
        yield 1

    @rollout_trace_op
    async def astream(self):
        yield 1

    @rollout_trace_op
    @classmethod
    def make(cls):
        return cls.__name__


class Child(Base):
    @rollout_trace_op
    def generate(self, depth=0):
        return super().generate(depth)

    @rollout_trace_op
    async def agenerate(self, depth=0):
        return await super().agenerate(depth)

    @rollout_trace_op
    def stream(self):
        yield from super().stream()

    @rollout_trace_op
    async def astream(self):
        async for item in super().astream():
            yield item

    @rollout_trace_op
    @classmethod
    def make(cls):
        return super().make()


async def test_a_method_and_what_it_overrides_are_one_call(recorded):
    """In functions, coroutines, generators and class methods; what they give is what they give."""
    child = Child()
    with rollout_trace_attr(name="trajectory"):
        assert (child.generate(), await child.agenerate()) == ([0], [0])
        assert (list(child.stream()), [item async for item in child.astream()]) == ([1], [1])
        assert Child.make() == "Child"
    names = ["generate", "agenerate", "stream", "astream", "make"]
    assert tree(recorded()) == {"trajectory": [f"Child.{name}" for name in names]}


def test_both_are_recorded_when_asked_for(recorded):
    """The override says so, for it knows what its super() calls are."""

    class Sampler(Base):
        @rollout_trace_op(record_super=True)
        def generate(self, depth=0):
            return super().generate(1) + super().generate(2)

    with rollout_trace_attr(name="trajectory"):
        Sampler().generate()
    sampler = f"{Sampler.__qualname__}.generate"
    assert tree(recorded()) == {"trajectory": [{sampler: ["Base.generate", "Base.generate"]}]}


def test_other_calls_of_the_same_name_are_calls_of_their_own(recorded):
    """Recursion, another object, what is called by way of another operation, and a sub-trajectory."""

    class Judge(Base):
        def __init__(self, other=None):
            self.other = other

        @rollout_trace_op(name="Judge.generate")
        def generate(self, depth=0):
            if depth:
                return self.generate(depth - 1)
            if self.other is not None:
                return self.other.generate()
            with rollout_trace_attr(name="sub-trajectory"):
                return super().generate()

    with rollout_trace_attr(name="trajectory"):
        Judge(Child()).generate(1)
        Judge().generate()
    assert tree(recorded()) == {
        "trajectory": [
            {"Judge.generate": [{"Judge.generate": ["Child.generate"]}]},
            {"Judge.generate": [{"sub-trajectory": ["Base.generate"]}]},
        ]
    }


def test_a_method_of_a_base_that_calls_the_override_is_recorded_with_it(recorded):
    """Going down is another call; only super() goes up."""

    class Template:
        @rollout_trace_op(name="Template.run")
        def run(self, again=True):
            return self.run(False) if again else 1

    class Concrete(Template):
        @rollout_trace_op(name="Concrete.run")
        def run(self, again=True):
            return 2

    with rollout_trace_attr(name="trajectory"):
        assert Template.run(Concrete()) == 2
    assert tree(recorded()) == {"trajectory": [{"Template.run": ["Concrete.run"]}]}


# --- callables ----------------------------------------------------------------------------------------------


def power(base, exponent):
    return base**exponent


async def apower(base, exponent):
    return base**exponent


class Callable:
    def __call__(self, text):
        return text.upper()


class AsyncCallable:
    async def __call__(self, text):
        await asyncio.sleep(0)
        return text.upper()


async def test_partials_and_callable_objects_can_be_operations(recorded):
    """Named after what they call; an object whose call is asynchronous becomes a coroutine function."""
    square = rollout_trace_op(functools.partial(power, exponent=2))
    asquare = rollout_trace_op(functools.partial(apower, exponent=2))
    with rollout_trace_attr():
        assert (square(3), await asquare(3)) == (9, 9)
        assert rollout_trace_op(Callable())("x") == "X"
        traced = rollout_trace_op(AsyncCallable())
        assert inspect.iscoroutinefunction(traced)
        assert inspect.iscoroutinefunction(asquare)
        assert await traced("y") == "Y"
    assert [(s.name, s.output) for s in recorded()[:4]] == [
        ("power", 9),
        ("apower", 9),
        ("Callable", "X"),
        ("AsyncCallable", "Y"),
    ]
    assert recorded()[0].input == {"base": 3, "exponent": 2}


async def test_what_a_plain_function_returns_is_handed_on_unchanged(recorded):
    """A coroutine or generator it returns runs after its span: decorate the function that it is of."""

    async def later():
        return 5

    @rollout_trace_op(name="plain")
    def plain(result):
        return result

    coroutine, iterator = later(), iter([1])
    with rollout_trace_attr():
        assert plain(iterator) is iterator
        assert plain(coroutine) is coroutine
        assert await coroutine == 5
    assert [s.name for s in recorded()] == ["plain", "plain", "rollout_trace"]


def test_everything_pickles_wherever_it_is_defined(recorded):
    """Functions and classes of a notebook's namespace or local ones, and trajectories before their block."""
    namespace = {"__name__": "__main__"}
    exec(
        textwrap.dedent("""
            from otel_rollout import rollout_trace_attr, rollout_trace_op
            @rollout_trace_op(kind="TOOL", exclude=["key"])
            def tool(text, key=None): return text
            class Agent:
                @rollout_trace_op
                def run(self, text): return tool(text, key="secret")
            class Careful(Agent):
                @rollout_trace_op
                def run(self, text): return super().run(text)
            trajectory = rollout_trace_attr(step=1, name="trajectory")
        """),
        namespace,
    )
    agent, trajectory = cloudpickle.loads(cloudpickle.dumps((namespace["Careful"], namespace["trajectory"])))

    @rollout_trace_op(name="local")
    def local(text):
        return text

    local = cloudpickle.loads(cloudpickle.dumps(local))
    with trajectory:
        assert agent().run("x") == local("x") == "x"
    spans = recorded()
    assert tree(spans) == {"trajectory": [{"Careful.run": ["tool"]}, "local"]}
    assert spans[0].input == {"text": "x"}


def test_a_script_sends_its_own_functions_elsewhere(tmp_path):
    """What is defined in __main__ arrives in a process that does not know the script."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import sys, cloudpickle
            from otel_rollout import rollout_trace_op
            @rollout_trace_op
            def double(value): return 2 * value
            @rollout_trace_op
            def numbers(to): yield from range(to)
            sys.stdout.buffer.write(cloudpickle.dumps((double, numbers)))
        """)
    )
    pickled = subprocess.run([sys.executable, script], check=True, capture_output=True, timeout=60).stdout
    double, numbers = cloudpickle.loads(pickled)
    assert (double(2), list(numbers(2))) == (4, [0, 1])


# --- signals ------------------------------------------------------------------------------------------------


class TimeUp(Exception):
    pass


def ring(signum, frame):
    raise TimeUp


@pytest.mark.parametrize("during", ["arguments", "result"])
def test_a_time_limit_by_signal_holds_while_we_run(recorded, monkeypatch, during):
    """What the application's signal handler raises is the application's, wherever it strikes."""
    calls = {"arguments": 1, "result": 2}[during]
    to_json = encoding.to_json

    def interrupted(value, limit):
        nonlocal calls
        calls -= 1
        if calls == 0:
            signal.raise_signal(signal.SIGALRM)
        return to_json(value, limit)

    monkeypatch.setitem(encoding.ENCODERS, "full", interrupted)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(TimeUp):
            rollout_trace_op(power)(2, 3)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [s.name for s in recorded()] == ["power"], "recorded as far as it came"


def test_a_fault_that_cannot_be_reported_is_harmless(monkeypatch):
    """A logging handler that fails is no reason either."""
    monkeypatch.setattr(errors, "_logger", None)
    errors.fault("a place that was not reported", ValueError())
    errors.warn("a mistake that was not reported")
