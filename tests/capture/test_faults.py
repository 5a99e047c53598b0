"""A fault in any internal call, on any path, changes nothing for user code.

A dry run numbers the calls of our functions. Then each call in turn fails at its entry, as it would without
memory or stack. Functions that user code calls, or that run user code, are left out; their inner calls fail.
"""

import asyncio
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from opentelemetry import context as otel_context

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from otel_rollout.record import runtime

PACKAGE = str(Path(otel_rollout.__file__).parent)
CARRIERS = {"start_steps"}
"""This and ``capture/generator_driver.py`` run a generator, which does not exist without them."""

SETS_CONTEXT = "attach"
"""Sets the context as the API's own function does, which is not made to fail either."""

SETTING_UP = {"_check_options", "_traced", "rollout_trace_op", "rollout_trace_attr"}
"""Decoration, and the creation of a trajectory, may raise; they record nothing."""


class Plain:
    """A trajectory that does nothing."""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def set_input(self, value):
        pass

    set_output = set_input


class Untraced:
    """The public functions, without tracing."""

    def op(self, function=None, **options):
        return function if function is not None else lambda function: function

    def attr(self, *args, **kwargs):
        return Plain()

    def score(self, name, value):
        pass


class Traced:
    """The public functions."""

    op = staticmethod(rollout_trace_op)
    attr = staticmethod(rollout_trace_attr)
    score = staticmethod(score)


def outcome(function, *args):
    """Return what a call returned or raised, in a form to compare."""
    try:
        return "gave", function(*args)
    except BaseException as error:
        return "raised", type(error), error.args


def functions(api, seen):
    @api.op(kind="TOOL")
    def add(a, b=2, *more, scale=1):
        seen.append(a)
        return (a + b + sum(more)) * scale

    @api.op
    def fail(what):
        seen.append(what)
        raise KeyError(what)

    return [outcome(add, 1), outcome(add, 1, 2, 3), outcome(fail, "mine"), outcome(add, "a", None)]


def overrides(api, seen):
    class Base:
        @api.op(exclude=["secret"])
        def generate(self, prompt, secret=None):
            seen.append(prompt)
            return prompt * 2

    class Child(Base):
        @api.op(capture="inputs")
        def generate(self, prompt):
            return super().generate(prompt, secret="x") + "!"

    return [outcome(Child().generate, "a"), outcome(Base().generate, "b")]


def coroutines(api, seen):
    @api.op
    async def wait(value):
        await asyncio.sleep(0)
        seen.append(value)
        if value == "fail":
            raise KeyError(value)
        return value

    async def cancelled():
        task = asyncio.ensure_future(wait("never"))
        await asyncio.sleep(0)
        task.cancel()
        await task

    async def all_of_it():
        results = []
        for each in (lambda: wait("a"), lambda: wait("fail"), cancelled):
            try:
                results.append(await each())
            except BaseException as error:
                results.append((type(error), error.args))
        return results

    return drive(all_of_it())


def drive(coroutine):
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


def generators(api, seen):
    @api.op
    def numbers(to):
        try:
            for number in range(to):
                seen.append((yield number))
            if to == 2:
                raise KeyError(to)
        finally:
            seen.append("cleaned")
        return "end"

    def returned():
        iterator = numbers(1)
        return [next(iterator), outcome(iterator.send, "sent")]

    def closed():
        iterator = numbers(3)
        return [next(iterator), iterator.close(), outcome(next, iterator)]

    def thrown():
        iterator = numbers(3)
        return [next(iterator), outcome(iterator.throw, OSError("thrown"))]

    return [outcome(list, numbers(3)), outcome(list, numbers(2)), returned(), closed(), thrown()]


def async_generators(api, seen):
    @api.op
    async def numbers(to):
        try:
            for number in range(to):
                await asyncio.sleep(0)
                seen.append((yield number))
            if to == 2:
                raise KeyError(to)
        finally:
            seen.append("cleaned")

    async def all_of_it():
        results = []
        try:
            async for number in numbers(2):
                results.append(number)
        except KeyError as error:
            results.append(error.args)
        closed = numbers(3)
        results.append(await closed.__anext__())
        results.append(await closed.asend("sent"))
        await closed.aclose()
        return results

    return drive(all_of_it())


def trajectories(api, seen):
    @api.op
    def turn(text):
        seen.append(text)
        return text

    def block(**options):
        with api.attr(step=1, name="trajectory", who="agent", **options) as trajectory:
            trajectory.set_input({"question": 1})
            turn("a")
            with api.attr(step=2):
                api.score("reward", 1.0)
            trajectory.set_output("answer")
            api.score("verdict", "good")
            raise KeyError("leaves the block")

    return [outcome(block), outcome(lambda: block(trace=False))]


SCENARIOS = [functions, overrides, coroutines, generators, async_generators, trajectories]
FAULTS = [MemoryError, RecursionError, OSError, ValueError]


def callers(frame):
    """Return the names of our functions from a frame up to the user's."""
    while frame is not None and is_ours(frame.f_code):
        yield frame.f_code.co_name
        frame = frame.f_back


def is_ours(code):
    return code.co_filename.startswith(PACKAGE) or "rollout_steps_" in code.co_varnames


class Calls:
    """Numbers the calls between our functions, and makes one of them fail."""

    def __init__(self, skipped=frozenset(), fails=None, error=None):
        self.count = 0
        self.run_user_code = set()
        self.found = []
        self.skipped = skipped
        self.fails = fails
        self.error = error

    def __call__(self, frame, event, argument):
        if event != "call":
            return
        code = frame.f_code
        if not is_ours(code):
            if code.co_filename == __file__:
                self.note_callers(frame.f_back)
            return
        if code in self.skipped or not is_ours(frame.f_back.f_code):
            return
        if code.co_name in CARRIERS | {SETS_CONTEXT} or code.co_filename.endswith(
            "capture/generator_driver.py"
        ):
            return
        if SETTING_UP & set(callers(frame)):
            return
        self.found.append(code)
        self.count += 1
        if self.count == self.fails:
            raise self.error("injected")

    def note_callers(self, frame):
        while frame is not None:
            if is_ours(frame.f_code):
                self.run_user_code.add(frame.f_code)
            frame = frame.f_back


def observed(scenario, api, profile=None):
    seen = []
    sys.setprofile(profile)
    try:
        return scenario(api, seen), seen
    finally:
        sys.setprofile(None)


@pytest.mark.internal_errors
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_fault_in_any_internal_call_does_not_reach_user_code(recorded, scenario):
    """Results, exceptions, side effects, context and random states are unchanged."""
    expected = observed(scenario, Untraced())
    assert observed(scenario, Traced()) == expected  # a first run: what is set up once is set up afterwards
    dry = Calls()
    assert observed(scenario, Traced(), dry) == expected
    skipped = frozenset(dry.run_user_code)
    counting = Calls(skipped)
    observed(scenario, Traced(), counting)
    assert counting.count > 30, "the dry run has seen our calls"
    context, states = otel_context.get_current(), (random.getstate(), repr(np.random.get_state()))
    surfaced = []
    for number in range(1, counting.count + 1):
        for error in (FAULTS[number % 4], FAULTS[(number + 1) % 4]):
            calls = Calls(skipped, number, error)
            if observed(scenario, Traced(), calls) != expected:
                surfaced.append((error.__name__, calls.found[-1].co_qualname, "surfaced"))
            if otel_context.get_current() is not context:
                surfaced.append((error.__name__, calls.found[-1].co_qualname, "left its context"))
                otel_context.attach(context)
    assert not surfaced
    assert (random.getstate(), repr(np.random.get_state())) == states
    before = len(recorded())
    with rollout_trace_attr(name="afterwards"):
        functions(Traced(), [])
    assert [span.name.rpartition(".")[2] for span in recorded()[before:]] == [
        "add",
        "add",
        "fail",
        "add",
        "afterwards",
    ]
    assert runtime.current() is not None
