"""What a decorated call records, without any change for the caller."""

import asyncio
import random
import subprocess
import sys

import cloudpickle
import pytest
from opentelemetry import trace

from otel_rollout import rollout_trace_attr, rollout_trace_op
from tests.spool_reader import Recorded, read_directory, tree


class Tool:
    @rollout_trace_op
    def execute(self, expression: str, *, precision: int = 2) -> dict[str, float]:
        return {"value": round(float(expression), precision)}

    @rollout_trace_op(kind="TOOL", name="calculator")
    async def execute_async(self, expression: str) -> float:
        await asyncio.sleep(0)
        return float(expression)

    @rollout_trace_op
    def fail(self) -> None:
        raise ValueError("no such thing")


def test_method_is_recorded_with_arguments_and_result(recorded):
    """Arguments are recorded by name, with defaults and without self."""
    with rollout_trace_attr(step=1, sample_index=2, rollout_n=3):
        assert Tool().execute("1.234") == {"value": 1.23}
    call, root = recorded()
    assert (call.name, call.input) == ("Tool.execute", {"expression": "1.234", "precision": 2})
    assert call.output == {"value": 1.23}
    assert call.span.parent_span_id == root.span.span_id
    assert call.attributes["openinference.span.kind"] == "CHAIN"


async def test_coroutine_function_is_recorded_with_name_and_kind(recorded):
    """A decorated coroutine function is a coroutine function.

    The options name its span and kind.
    """
    assert asyncio.iscoroutinefunction(Tool.execute_async)
    async with rollout_trace_attr(step=1):
        assert await Tool().execute_async("2") == 2.0
    call, _root = recorded()
    assert (call.name, call.attributes["openinference.span.kind"]) == ("calculator", "TOOL")
    assert (call.input, call.output) == ({"expression": "2"}, 2.0)


def test_static_and_class_methods_can_be_decorated(recorded):
    """The decorator may be above or below @staticmethod and @classmethod."""

    class Kit:
        @rollout_trace_op
        @staticmethod
        def above(value: int) -> int:
            return value

        @staticmethod
        @rollout_trace_op
        def below(value: int) -> int:
            return value

        @rollout_trace_op
        @classmethod
        def of_class(cls, value: int) -> str:
            return f"{cls.__name__} {value}"

    with rollout_trace_attr():
        assert (Kit.above(1), Kit().below(2), Kit().of_class(3)) == (1, 2, "Kit 3")
    assert [s.input for s in recorded()[:3]] == [{"value": 1}, {"value": 2}, {"value": 3}]


def test_nested_call_is_a_child_span(recorded):
    """An operation called by another is its child."""

    @rollout_trace_op(name="inner")
    def inner() -> int:
        return 1

    @rollout_trace_op(name="outer")
    def outer() -> int:
        return inner() + inner()

    with rollout_trace_attr(name="trajectory"):
        outer()
    assert tree(recorded()) == {"trajectory": [{"outer": ["inner", "inner"]}]}


def test_exception_is_recorded_and_reaches_the_caller(recorded):
    """Operation and trajectory name the exception.

    The caller gets the identical object.
    """
    with pytest.raises(ValueError, match="no such thing") as caught, rollout_trace_attr():
        Tool().fail()
    call, root = recorded()
    for span in (call.span, root.span):
        assert (span.status.code, span.status.message) == (2, "ValueError: no such thing")
        (event,) = span.events
        assert event.name == "exception"
    assert caught.value.__context__ is None
    assert "output.value" not in call.attributes


async def test_cancelled_call_is_recorded_as_cancelled(recorded):
    """The span ends with the cancellation, which is passed on."""
    entered = asyncio.Event()

    @rollout_trace_op(name="wait")
    async def wait_forever() -> None:
        entered.set()
        await asyncio.Event().wait()

    async def trajectory() -> None:
        with rollout_trace_attr():
            await wait_forever()

    task = asyncio.create_task(trajectory())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    call, _root = recorded()
    assert call.span.status.message.startswith("CancelledError")


async def test_concurrent_tasks_record_into_their_own_trajectories(recorded):
    """Each of many tasks records into its own trajectory."""

    @rollout_trace_op(name="step")
    async def step(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def trajectory(number: int) -> None:
        with rollout_trace_attr(sample_index=number):
            for _ in range(3):
                await step(number)

    await asyncio.gather(*map(trajectory, range(20)))
    by_trace: dict[bytes, set[int]] = {}
    for span in recorded():
        by_trace.setdefault(span.span.trace_id, set()).add(span.attributes["rollout.sample_index"])
    assert sorted(map(tuple, by_trace.values())) == [(n,) for n in range(20)]


def test_call_outside_any_trajectory_is_its_own_trace(recorded):
    """Without a trajectory, the call is a root span."""
    Tool().execute("1")
    (call,) = recorded()
    assert not call.span.parent_span_id
    assert "rollout.step" not in call.attributes


def test_arguments_are_recorded_before_the_call(recorded):
    """A function that changes its argument does not change the record."""

    @rollout_trace_op
    def consume(messages: list[str]) -> int:
        messages.clear()
        return 0

    with rollout_trace_attr():
        consume(["a", "b"])
    assert recorded()[0].input == {"messages": ["a", "b"]}


def test_wrong_arguments_raise_the_functions_own_type_error(recorded):
    """The TypeError of a call that does not fit is the plain function's."""
    with rollout_trace_attr(), pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        Tool().execute(nonsense=1)
    assert recorded()[0].span.status.code == 2


def test_current_span_takes_attributes_through_opentelemetry(recorded):
    """The current span inside an operation is an ordinary span of OpenTelemetry's API."""

    @rollout_trace_op(kind="LLM")
    def generate() -> str:
        span = trace.get_current_span()
        assert span.is_recording()
        span.set_attribute("gen_ai.usage.output_tokens", 7)
        span.set_attributes({"gen_ai.response.finish_reasons": ["stop"], "output.value": '"mine"'})
        span.add_event("first token", {"ms": 1.5})
        return "text"

    with rollout_trace_attr():
        generate()
    call = recorded()[0]
    assert call.attributes["gen_ai.usage.output_tokens"] == 7
    assert call.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert call.output == "mine", "what the user sets wins over what would be captured"
    assert call.span.events[0].name == "first token"


def test_unconfigured_operation_is_called_without_a_record(fresh_process, tmp_path):
    """Without configuration nothing is recorded and no directory is created."""
    with rollout_trace_attr(step=1) as trajectory:
        assert Tool().execute("1") == {"value": 1.0}
    assert trajectory.trace_id is None
    assert not (tmp_path / "spool").exists()


def test_global_random_state_is_unchanged(recorded):
    """Training draws the identical random numbers with and without tracing."""
    random.seed(7)
    state = random.getstate()
    with rollout_trace_attr():
        Tool().execute("1")
    assert random.getstate() == state
    random.seed(7)
    with rollout_trace_attr():
        Tool().execute("1")
    assert len({s.span.span_id for s in recorded()}) == 4, "seeding does not repeat ids"


def test_decorated_class_pickles_by_value(recorded):
    """A class of a notebook or of another __main__ is traced where it arrives.

    Its calls are siblings.
    """
    run = subprocess.run(
        [sys.executable, "-m", "tests.capture.programs.pickle_class"], capture_output=True, check=True
    )
    agent = cloudpickle.loads(run.stdout)()

    async def both() -> None:
        assert [agent.act(1), await agent.wait(1), agent.act(2)] == [2, 3, 3]

    with rollout_trace_attr():
        asyncio.run(both())
    *calls, root = recorded()
    assert [call.name for call in calls] == ["Agent.act", "Agent.wait", "Agent.act"]
    assert {call.span.parent_span_id for call in calls} == {root.span.span_id}


@pytest.mark.parametrize(
    ("decorate", "error", "message"),
    [
        (lambda: rollout_trace_op(kind="MODEL"), ValueError, "kind='MODEL' is none of AGENT, CHAIN"),
        (lambda: rollout_trace_op(42), TypeError, "42 is not a function"),
        (lambda: rollout_trace_op(int), TypeError, "<class 'int'> is not a function"),
        (lambda: rollout_trace_op(capture="both"), ValueError, "capture='both' is none of all, inputs"),
        (lambda: rollout_trace_op(exclude="key"), TypeError, "exclude='key' is no collection of argument"),
        (
            lambda: rollout_trace_op(exclude=["key", "a"])(lambda a: a),
            ValueError,
            r"exclude names 'key', which .*<lambda>\(a\) does not take",
        ),
    ],
)
def test_wrong_options_raise_at_decoration(decorate, error, message):
    """A mistake in the decorator shows when the module is imported."""
    with pytest.raises(error, match=message):
        decorate()


@pytest.mark.internal_errors
def test_internal_error_is_reported_once_and_the_call_succeeds(recorded, monkeypatch, caplog):
    """When recording fails, the call goes through, and one error is logged."""
    from otel_rollout.record.capture import encoding

    monkeypatch.setitem(encoding.ENCODERS, "full", lambda *_: 1 / 0)
    with rollout_trace_attr():
        assert [Tool().execute("1") for _ in range(3)] == [{"value": 1.0}] * 3
    assert len([r for r in caplog.records if "internal error" in r.message]) == 1


def test_replaced_context_runtime_is_used_at_once(tmp_path):
    """Operations nest by the context that the application has set.

    Each trajectory leaves it.
    """
    command = [sys.executable, "-m", "tests.capture.programs.other_context_runtime", str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    traces: dict[bytes, list[Recorded]] = {}
    for span in read_directory(tmp_path):
        traces.setdefault(span.span.trace_id, []).append(span)
    assert [tree(spans) for spans in traces.values()] == [
        {"first": [{"outer": ["inner"]}]},
        {"second": [{"outer": ["inner"]}]},
    ]
