"""Options of rollout_trace_op, super() calls, and callables of every kind."""

import asyncio
import functools
import inspect
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.base import errors
from otel_rollout.record.capture import encoding
from tests.spool_reader import tree

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize(
    ("capture", "has_input", "has_output"),
    [("all", True, True), ("inputs", True, False), ("outputs", False, True), ("none", False, False)],
)
def test_capture_option_limits_the_recorded_content(recorded, capture, has_input, has_output):
    """The span is recorded with every option.

    Neither the span nor the root has more content.
    """

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
    """Excluded arguments are missing by name and in ``**kwargs``.

    They are also missing in a call with wrong arguments.
    """

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


async def test_method_and_its_super_call_are_one_span(recorded):
    """Functions, coroutines, generators and class methods return their own values."""
    child = Child()
    with rollout_trace_attr(name="trajectory"):
        assert (child.generate(), await child.agenerate()) == ([0], [0])
        assert (list(child.stream()), [item async for item in child.astream()]) == ([1], [1])
        assert Child.make() == "Child"
    names = ["generate", "agenerate", "stream", "astream", "make"]
    assert tree(recorded()) == {"trajectory": [f"Child.{name}" for name in names]}


def test_record_super_records_both_methods(recorded):
    """The option of the overriding method decides."""

    class Sampler(Base):
        @rollout_trace_op(record_super=True)
        def generate(self, depth=0):
            return super().generate(1) + super().generate(2)

    with rollout_trace_attr(name="trajectory"):
        Sampler().generate()
    sampler = f"{Sampler.__qualname__}.generate"
    assert tree(recorded()) == {"trajectory": [{sampler: ["Base.generate", "Base.generate"]}]}


def test_other_calls_of_methods_with_one_name_are_separate_spans(recorded):
    """Calls that are no super() calls have spans of their own.

    Examples are recursion, another object, another operation between, and a sub-trajectory.
    """

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


def test_base_method_that_calls_the_override_is_a_separate_span(recorded):
    """Only a call up the method resolution order is a super() call."""

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


async def test_partials_and_callable_objects_are_recorded(recorded):
    """The span has the name of the called function.

    An asynchronous __call__ makes a coroutine function.
    """
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


async def test_returned_coroutine_or_generator_is_not_wrapped(recorded):
    """A returned coroutine or generator runs after the span's end.

    Only its own function can be decorated.
    """

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


def test_local_definitions_and_trajectories_pickle(recorded):
    """Functions and classes of notebooks and functions do.

    Trajectories do so before their block.
    """
    namespace = runpy.run_path(str(PROGRAMS / "notebook_cell.py"), run_name="__main__")
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


def test_function_of_a_script_runs_in_a_process_without_the_script():
    """A definition of __main__ arrives by value."""
    script = PROGRAMS / "pickle_functions.py"
    pickled = subprocess.run([sys.executable, script], check=True, capture_output=True, timeout=60).stdout
    double, numbers = cloudpickle.loads(pickled)
    assert (double(2), list(numbers(2))) == (4, [0, 1])


# --- signals ------------------------------------------------------------------------------------------------


class TimeUp(Exception):
    pass


def ring(signum, frame):
    raise TimeUp


@pytest.mark.parametrize("during", ["arguments", "result"])
def test_signal_handlers_exception_reaches_the_application(recorded, monkeypatch, during):
    """A time limit holds while we encode arguments or results."""
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


def test_internal_error_with_a_failing_logger_is_ignored(monkeypatch):
    """A logging handler that fails raises nothing in user code."""
    monkeypatch.setattr(errors, "logger", None)
    errors.fault("a place that was not reported", ValueError())
    errors.warn_once("a mistake that was not reported")
