"""The caller cannot tell: whatever a callable does, traced it does the same.

Hypothesis writes functions — their parameters and, action by action, their bodies — and what callers do to
them. Each runs plain and traced; results, exceptions, items and the order of side effects are compared.
"""

import asyncio
import gc
import inspect
import random
from types import coroutine

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import context as otel_context

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.launch import launcher
from tests.capture.test_signature import PIECES, arguments, function_of
from tests.fresh_process import fresh_process as new_process

BODY = """\
{define} f({parameters}):
    log(dict(locals()))
    for action, value in body:
        log(action)
        if action == "random":
            log((random.random(), np.random.random()))
        if action == "raise":
            raise value
        if action == "return":
            return {value}
        {suspend}
"""
AWAIT = """
        if action == "await":
            try:
                log(await pause(value))
            finally:
                log("awaited")
"""
YIELD = """
        if action == "yield":
            log((yield value))
        if action == "guarded":
            try:
                log((yield value))
            except BaseException as error:
                log((type(error), error.args))
                if over:
                    raise
            finally:
                log("cleaned")
"""
KINDS = {
    "function": ("def", "value", ""),
    "coroutine": ("async def", "value", AWAIT),
    "generator": ("def", "value", YIELD),
    "async generator": ("async def", "", AWAIT + YIELD),
}


over = []
"""Not empty once the caller is done with a generator. One that ignored its end then has it: what the garbage
collector makes of those that ignore it again is not compared, as for it a generator around another is two."""


class Unprintable:
    def __repr__(self):
        raise ValueError("cannot be shown")


class Odd(BaseException):
    """Not a subclass of ``Exception``, like cancellation."""


@coroutine
def pause(value):
    return (yield value)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.builds(Unprintable),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
    max_leaves=5,
)
errors = st.sampled_from(
    [ValueError, KeyError, MemoryError, RecursionError, StopIteration, Odd, GeneratorExit]
)
raised = errors.flatmap(lambda kind: st.builds(kind, st.integers()))
actions = st.lists(
    st.tuples(st.sampled_from(["effect", "random", "await", "yield", "guarded", "return"]), values)
    | st.tuples(st.just("raise"), raised),
    max_size=6,
)
parameters = (
    st.lists(st.sampled_from(PIECES), unique=True)
    .map(lambda chosen: [piece for piece in PIECES if piece in chosen])
    .filter(lambda chosen: function_of(chosen) is not None)
)
told = st.lists(
    st.tuples(st.just("send"), st.none() | values)
    | st.tuples(st.just("throw"), raised)
    | st.just(("close", None)),
    max_size=6,
)
interrupts = st.none() | st.tuples(st.integers(0, 3), st.sampled_from([asyncio.CancelledError, Odd]))
transparent = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def written(kind, chosen, body, log):
    define, value, suspend = KINDS[kind]
    if "generator" in kind:
        suspend += "        if False:\n            yield\n"
    namespace = {"body": body, "log": log, "pause": pause, "random": random, "np": np, "over": over}
    namespace["__name__"] = "written"
    source = BODY.format(define=define, parameters=", ".join(chosen), value=value, suspend=suspend.strip())
    exec(source, namespace)
    return namespace["f"]


class Passed(BaseException):
    """The values that an awaitable waited for before it raised."""


def outcome(function, *args, **kwargs):
    try:
        return "gave", function(*args, **kwargs)
    except Passed as passed:
        return "passed", passed.args, described(passed.__cause__)
    except BaseException as error:
        return "raised", described(error)


def described(error):
    return type(error), error.args, type(error.__context__), type(error.__cause__)


def stepped(awaitable, interrupt=None):
    """Run an awaitable by hand; throw ``interrupt`` where it waits for the n-th time."""
    steps, passed = awaitable.__await__(), []
    try:
        waits = steps.send(None)
        for number in range(20):
            passed.append(waits)
            if interrupt is not None and interrupt[0] == number:
                waits = steps.throw(interrupt[1]("interrupted"))
            else:
                waits = steps.send(number)
    except StopIteration as stop:
        return passed, stop.value
    except BaseException as error:
        raise Passed(passed) from error
    raise AssertionError("waits for ever")


def called(function, call, script, interrupt):
    """Call a function of any kind, and treat its result as the script says."""
    args, kwargs = call
    if inspect.isgeneratorfunction(function):
        return consumed(function, args, kwargs, script, "send", "throw", "close", lambda step: step)
    if inspect.isasyncgenfunction(function):
        return consumed(
            function, args, kwargs, script, "asend", "athrow", "aclose", lambda s: stepped(s, interrupt)
        )
    if inspect.iscoroutinefunction(function):

        async def awaited():  # wrong arguments raise at the call, or when the result is awaited
            return await function(*args, **kwargs)

        return outcome(lambda: stepped(awaited(), interrupt))
    return outcome(function, *args, **kwargs)


def consumed(function, args, kwargs, script, send, throw, close, run):
    made = outcome(function, *args, **kwargs)
    if made[0] == "raised":
        return made
    generator = made[1]
    results = [outcome(lambda: run(getattr(generator, send)(None)))]
    for action, value in script:
        arguments_ = () if action == "close" else (value,)
        method = getattr(generator, {"send": send, "throw": throw, "close": close}[action])
        results.append(outcome(lambda m=method, a=arguments_: run(m(*a))))
    results.append(outcome(lambda: run(getattr(generator, close)())))
    over.append(True)
    return results


def everything(decorate, kind, chosen, body, call, script, interrupt):
    """Return everything that can be observed of a call."""
    log = []
    over.clear()
    function = decorate(written(kind, chosen, body, log.append))
    random.seed(1)
    np.random.seed(1)
    result = called(function, call, script, interrupt)
    gc.collect(0)
    return result, log, random.getstate(), repr(np.random.get_state()[1:3])


def same(one, other):
    """Return whether two observations have identical or equal objects."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return one == other


@pytest.mark.parametrize("kind", KINDS)
@transparent
@given(
    chosen=parameters, body=actions, call=arguments, script=told, interrupt=interrupts, options=st.booleans()
)
def test_traced_callable_behaves_as_the_plain_one(
    recorded, kind, chosen, body, call, script, interrupt, options
):
    """Results, exceptions, items, side effects and random numbers are equal."""
    decorate = rollout_trace_op if options else rollout_trace_op(capture="outputs", kind="TOOL")
    plain = everything(lambda function: function, kind, chosen, body, call, script, interrupt)
    with rollout_trace_attr(step=1):
        inside = otel_context.get_current()
        traced = everything(decorate, kind, chosen, body, call, script, interrupt)
        assert otel_context.get_current() is inside
    assert same(traced, plain), (traced, plain)
    assert otel_context.get_current() == {}


SETTINGS = {
    "OTEL_TRACES_EXPORTER": ["test-file", "spool", "none", "no-such-exporter"],
    "OTEL_SDK_DISABLED": ["true", "false"],
    "OTEL_TRACES_SAMPLER": ["always_off", "traceidratio", "parentbased_always_on", "no-such-sampler"],
    "OTEL_TRACES_SAMPLER_ARG": ["0.5", "0", "much"],
    "OTEL_RESOURCE_ATTRIBUTES": ["a=b", "a"],
    "OTEL_ROLLOUT_SPOOL_DIR": ["/proc/nowhere", "/dev/null/nowhere"],
    "OTEL_ROLLOUT_CAPTURE_CONTENT": ["full", "metadata", "none"],
    "OTEL_ROLLOUT_REDACT": ["secrets", "no.such:function", "os:getcwd"],
    "OTEL_ROLLOUT_VALUE_LIMIT": ["1", "100", "-1"],
    "OTEL_ROLLOUT_SPOOL_LIMIT": ["1", "100"],
    "OTEL_ROLLOUT_PROJECT": ["p", "\U0001f600"],
    "OTEL_ROLLOUT_IDENTITY_HOSTS": ["*"],
    "OTEL_ROLLOUT_TRACEPARENT_HOSTS": ["none", "http://x"],
    "OTEL_ROLLOUT_CONFIG": [
        "[1]",
        "{}",
        '{"value_limit": null}',
        '{"exporters": {"test-file": {}}}',
        '{"x": 1}',
    ],
}
"""What may be set, to something that works and to something that does not."""
configurations = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(chosen) for name, chosen in SETTINGS.items()}
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    configuration=configurations,
    kind=st.sampled_from(sorted(KINDS)),
    chosen=parameters,
    body=actions,
    call=arguments,
    script=told,
    interrupt=interrupts,
)
def test_configuration_never_changes_behaviour(
    fresh_process, test_exporters, monkeypatch, tmp_path, **given_
):
    """Any configuration, even an invalid one, decides only what is recorded."""
    configuration = {"OTEL_TRACES_EXPORTER": "spool", **given_.pop("configuration")}
    monkeypatch.setattr(
        launcher, "ensure_forwarder", lambda node_dir, configured: None
    )  # no destination is needed
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIR", str(tmp_path / "spool"))
    with monkeypatch.context() as environment:
        environment.delenv("OTEL_ROLLOUT_CONFIG", raising=False)
        for name, value in configuration.items():
            environment.setenv(name, value)
        plain = everything(lambda function: function, **given_)
        with new_process():
            before = otel_context.get_current()
            with rollout_trace_attr(step=1):
                traced = everything(rollout_trace_op, **given_)
            assert otel_context.get_current() is before
            assert same(traced, plain), (traced, plain)


@pytest.mark.parametrize("kind", KINDS)
@given(chosen=parameters)
def test_introspection_equals_the_plain_functions(kind, chosen):
    """The questions that frameworks ask of a function have equal answers."""
    plain = written(kind, chosen, [], None)
    traced = rollout_trace_op(plain)
    for question in (
        inspect.signature,
        inspect.isfunction,
        inspect.iscoroutinefunction,
        asyncio.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
        lambda function: (function.__name__, function.__qualname__, function.__module__, function.__doc__),
    ):
        assert question(traced) == question(plain)
