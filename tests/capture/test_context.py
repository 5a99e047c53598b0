"""A task keeps the context in which it started, even after its trajectory ends."""

import asyncio
import contextvars
import threading

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import TracerProvider

from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from otel_rollout.record.propagation import carrier
from otel_rollout.record.propagation.ray_incoming_calls import receiving
from otel_rollout.record.propagation.ray_outgoing_calls import ARGUMENT


@rollout_trace_op(name="turn")
def turn(text: str) -> str:
    return text.upper()


def roots_of(spans):
    """Return the root spans by name."""
    return {s.name: s for s in spans if not s.span.parent_span_id}


class Engine:
    """A client whose worker task is started by its first caller."""

    def __init__(self) -> None:
        self.jobs: asyncio.Queue = asyncio.Queue()
        self.worker: asyncio.Task | None = None

    async def rollout(self, number: int) -> None:
        if self.worker is None:
            self.worker = asyncio.create_task(self.serve())
        done = asyncio.get_running_loop().create_future()
        await self.jobs.put((number, done))
        await done

    async def ask(self) -> None:
        turn("actor")

    async def serve(self) -> None:
        while True:
            number, done = await self.jobs.get()
            with rollout_trace_attr(step=number, sample_index=number, name=f"job {number}"):
                turn(f"{number}")
            done.set_result(None)


async def test_worker_started_in_a_trajectory_records_later_ones_as_separate_traces(recorded):
    """Each later trajectory has its own identity and a link to the first.

    The first trajectory started the worker.
    """
    engine = Engine()
    with rollout_trace_attr(step=0, name="first"):
        await engine.rollout(0)
    for number in (1, 2):
        await engine.rollout(number)
    engine.worker.cancel()
    spans = recorded()
    roots = roots_of(spans)
    assert set(roots) == {"first", "job 1", "job 2"}
    assert len({root.span.trace_id for root in roots.values()}) == 3
    first = roots["first"].span
    for number in (1, 2):
        root = roots[f"job {number}"]
        assert [(link.trace_id, link.span_id) for link in root.span.links] == [
            (first.trace_id, first.span_id)
        ]
        assert [s.output for s in spans if s.span.parent_span_id == root.span.span_id] == [f"{number}"]
        assert root.input == {"text": f"{number}"}
        assert root.attributes["rollout.step"] == number
    (inner,) = (s for s in spans if s.name == "job 0")  # the first trajectory was running then
    assert (inner.span.parent_span_id, len(inner.span.links)) == (first.span_id, 0)


async def test_trajectories_of_concurrent_tasks_are_part_of_the_running_one(recorded):
    """A running trajectory's trace holds the trajectories of all its tasks."""

    async def opponent(number: int) -> None:
        with rollout_trace_attr(step=1, rollout_n=number, name="opponent"):
            await asyncio.sleep(0)
            turn("x")

    with rollout_trace_attr(step=1, name="debate"):
        await asyncio.gather(*map(opponent, range(3)))
    spans = recorded()
    assert len({s.span.trace_id for s in spans}) == 1
    assert not any(s.span.links for s in spans)


@pytest.mark.parametrize("served", [{"step": 2}, {"sample_index": 8}, {"rollout_n": 1}])
@pytest.mark.parametrize("first", [{}, {"trace": False}])
async def test_worker_started_in_a_running_trajectory_records_others_as_separate_traces(
    recorded, first, served
):
    """In another task, another step, sample or rollout is not part of the running one."""
    identity = {"step": 1, "sample_index": 7, "rollout_n": 0}

    async def serve() -> None:
        with rollout_trace_attr(**(identity | served), name="served"):
            turn("x")
        with rollout_trace_attr(**identity, name="own"):
            turn("y")

    with rollout_trace_attr(**identity, **first, name="first"), rollout_trace_attr(name="part"):
        await asyncio.create_task(serve())  # the worker is started in a part, which names nothing else
    spans = {span.name: span for span in recorded()}
    links = [(link.trace_id, link.span_id) for link in spans["served"].span.links]
    assert spans["served"].span.parent_span_id == b""
    assert (
        spans["served"].attributes.items()
        >= {f"rollout.{k}": v for k, v in (identity | served).items()}.items()
    )
    if first:
        assert set(spans) == {"served", "turn"}
        assert links == []
    else:
        part, own = spans["part"].span, spans["own"].span
        assert own.trace_id == part.trace_id == spans["first"].span.trace_id
        assert links == [(part.trace_id, part.span_id)]


def test_thread_that_a_trajectory_starts_records_others_as_separate_traces(recorded):
    """A thread that got the context of a running trajectory serves another one."""
    served = rollout_trace_attr(step=2, name="served")

    def serve() -> None:
        with served:
            turn("x")

    with rollout_trace_attr(step=1, name="first"):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(serve,), daemon=True)
        thread.start()
        thread.join()
    assert set(roots_of(recorded())) == {"first", "served"}


def test_trajectory_inside_the_block_of_another_is_part_of_it(recorded):
    """Its caller is the outer trajectory, whatever step it names."""
    with rollout_trace_attr(step=1, name="outer"), rollout_trace_attr(step=2, name="inner"):
        turn("x")
    assert set(roots_of(recorded())) == {"outer"}


@pytest.mark.parametrize("left_out", [{"trace": False}, {}])
def test_trajectory_after_an_unrecorded_one_is_sampled_anew(recorded, left_out):
    """An ended, unrecorded trajectory does not leave later trajectories unrecorded."""
    with rollout_trace_attr(step=1, name="first", **left_out):
        context = contextvars.copy_context()

    def later() -> None:
        with rollout_trace_attr(step=2, name="later"):
            turn("x")

    thread = threading.Thread(target=context.run, args=(later,), daemon=True)
    thread.start()
    thread.join()
    roots = roots_of(recorded())
    assert len(roots["later"].span.links) == (0 if left_out else 1)


def test_trajectory_below_an_ended_operation_is_a_separate_trace(recorded):
    """A worker started by an operation outside trajectories records its own traces."""

    @rollout_trace_op(name="start")
    def start() -> contextvars.Context:
        return contextvars.copy_context()

    def later() -> None:
        with rollout_trace_attr(step=2, name="later"):
            turn("x")

    context = start()
    context.run(later)
    roots = roots_of(recorded())
    assert set(roots) == {"start", "later"}
    assert roots["later"].span.links[0].span_id == roots["start"].span.span_id


@pytest.mark.parametrize("is_sdk", [False, True], ids=["our provider", "the application's"])
def test_trajectories_inside_an_operation_outside_any_are_separate_traces(recorded, monkeypatch, is_sdk):
    """A decorated training step is the root of none of its trajectories; each has a link to what it is in."""
    if is_sdk:
        provider = TracerProvider()
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    @rollout_trace_op(name="part")
    def part() -> None:
        for number in range(2):
            with rollout_trace_attr(step=1, rollout_n=number, name=f"rollout {number}"):
                turn("x")
        turn("y")

    rollout_trace_op(name="train_step")(part)()
    with rollout_trace_attr(step=1, name="after"):
        turn("z")
    spans = recorded()
    assert set(roots_of(spans)) == {"train_step", "rollout 0", "rollout 1", "after"}
    step, part_of = (next(s.span for s in spans if s.name == name) for name in ("train_step", "part"))
    for name in ("rollout 0", "rollout 1"):
        root = roots_of(spans)[name].span
        assert [(link.trace_id, link.span_id) for link in root.links] == [(step.trace_id, part_of.span_id)]
    turns = {s.output: s.span.parent_span_id for s in spans if s.name == "turn"}
    assert turns["Y"] == part_of.span_id, "the context after a trajectory is that of the operation"
    assert not roots_of(spans)["after"].span.links


@pytest.mark.parametrize("is_sdk", [False, True])
def test_spans_inside_an_evaluator_say_so(recorded, monkeypatch, is_sdk):
    """So do its own span, and those of a task or an actor that it calls, but none of a trajectory in it."""
    if is_sdk:
        provider = TracerProvider()
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    async def task() -> None:
        turn("task")

    @rollout_trace_op(name="judge", kind="EVALUATOR")
    def judge() -> None:
        turn("inside")
        asyncio.run(task())
        asyncio.run(receiving(Engine.ask)(None, **{ARGUMENT: orjson.dumps(carrier.inject())}))
        with rollout_trace_attr(step=1, name="opponent"):
            turn("opponent")

    with rollout_trace_attr(step=1, name="first"):
        judge()
        turn("after")
    judge()
    told = {s.output or s.name for s in recorded() if "rollout.in_evaluator" in s.attributes}
    assert told == {"judge", "INSIDE", "TASK", "ACTOR"}
    beginning = {s.name for s in recorded() if "rollout.begins_trajectory" in s.attributes}
    assert beginning == {"opponent"}, "the trajectory that has a parent"


async def test_trajectories_of_actors_that_such_an_operation_calls_are_separate_traces(recorded):
    """The call says that it is outside any trajectory; a call below another program's span does not know."""
    engine = Engine()

    @rollout_trace_op(name="train_step")
    def carried() -> bytes:
        return orjson.dumps(carrier.inject())

    await receiving(engine.rollout)(1, **{ARGUMENT: carried()})
    engine.worker.cancel()
    spans = {s.name: s.span for s in recorded()}
    assert not spans["job 1"].parent_span_id
    assert [link.span_id for link in spans["job 1"].links] == [spans["train_step"].span_id]
    assert spans["turn"].trace_id == spans["job 1"].trace_id != spans["train_step"].trace_id


def test_trajectory_below_an_ended_application_span_is_a_separate_trace(recorded, monkeypatch):
    """Trajectories belong to the application's request only while the request lasts."""
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    def trajectory(name: str) -> None:
        with rollout_trace_attr(step=2, name=name):
            turn("x")

    with provider.get_tracer("app").start_as_current_span("request") as request:
        trajectory("inside")
        context = contextvars.copy_context()
    context.run(trajectory, "later")
    known = {s.name: s.span for s in recorded() if s.name != "turn"}
    ids = request.get_span_context()
    assert known["inside"].trace_id.hex() == f"{ids.trace_id:032x}" != known["later"].trace_id.hex()
    assert not known["later"].parent_span_id
    assert known["later"].links[0].span_id.hex() == f"{ids.span_id:016x}"


async def test_trajectory_after_an_ended_remote_call_is_a_separate_trace(recorded):
    """What an actor's background task starts after the call is not in its trace."""
    engine = Engine()
    sent = orjson.dumps({"traceparent": f"00-{7:032x}-{8:016x}-01"})
    for number in range(3):
        await receiving(engine.rollout)(number, **{ARGUMENT: sent})
    engine.worker.cancel()
    known = {s.name: s.span for s in recorded() if s.name != "turn"}
    assert known["job 0"].trace_id.hex() == f"{7:032x}"
    assert len({span.trace_id for span in known.values()}) == 3
    for number in (1, 2):
        assert not known[f"job {number}"].parent_span_id
        assert [link.span_id.hex() for link in known[f"job {number}"].links] == [f"{8:016x}"]


def test_operations_and_scores_after_the_end_stay_in_the_ended_trace(recorded):
    """The ended root span has neither the operations nor the scores."""
    with rollout_trace_attr(step=1, name="over"):
        turn("inside")
        context = contextvars.copy_context()

    def later() -> None:
        turn("later")
        score("reward", 1.0)

    context.run(later)
    spans = recorded()
    (root,) = roots_of(spans).values()
    assert (root.output, "rollout.score.reward" in root.attributes) == ("INSIDE", False)
    assert {s.span.parent_span_id for s in spans if s is not root} == {root.span.span_id}
    (scored,) = (s for s in spans if s.name == "score reward")
    assert scored.attributes["rollout.score_origin"] == "outside"


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.integers(0, 5), max_size=24))
def test_trajectories_left_in_any_order_leave_an_empty_context(recorded, steps):
    """A trajectory is below its enclosing trajectory while that runs, else a root."""
    outside = otel_context.get_current()
    known = len(recorded())
    running, expected, count = {}, {}, 0
    for slot in steps:
        if slot in running:
            running.pop(slot).__exit__(None, None, None)
            continue
        around = trace.get_current_span()
        trajectory = rollout_trace_attr(step=count, name=f"{count}").__enter__()
        is_below = around.is_recording()
        expected[f"{count}"] = f"{around.get_span_context().span_id:016x}" if is_below else ""
        running[slot] = trajectory
        count += 1
    for trajectory in running.values():
        trajectory.__exit__(None, None, None)
    assert not trace.get_current_span().is_recording()
    with rollout_trace_attr(step=count, name="last"):
        pass
    expected["last"] = ""
    otel_context.attach(outside)
    found = {s.name: s.span.parent_span_id.hex() for s in recorded()[known:]}
    assert found == expected


def test_trajectories_left_in_the_wrong_order_restore_the_context(recorded):
    """Later spans belong to neither trajectory.

    The application's own context entries stay.
    """
    outside = otel_context.get_current()
    outer, inner = rollout_trace_attr(name="outer"), rollout_trace_attr(name="inner")
    outer.__enter__()
    otel_context.attach(baggage.set_baggage("user", "x"))
    inner.__enter__()
    outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    assert baggage.get_baggage("user") == "x"
    turn("on its own")
    otel_context.attach(outside)
    spans = recorded()
    assert set(roots_of(spans)) == {"outer", "turn"}
    assert "rollout.project_name" not in roots_of(spans)["turn"].attributes


def test_trajectory_left_inside_a_librarys_open_span_restores_the_context(recorded):
    """A stream that nobody closed keeps no later operation in the trajectory."""
    between, after = (rollout_trace_op(name=name)(lambda: None) for name in ("between", "after"))
    outside = otel_context.get_current()
    with rollout_trace_attr(name="outer"):
        with rollout_trace_attr(name="inner"):
            stream = trace.get_tracer("library").start_span("stream")
            otel_context.attach(trace.set_span_in_context(stream))
        between()
    after()
    otel_context.attach(outside)
    stream.end()
    spans = recorded()
    names = {s.span.span_id: s.name for s in spans} | {b"": None}
    assert {s.name: names[s.span.parent_span_id] for s in spans} == {
        "outer": None,
        "inner": "outer",
        "stream": "inner",
        "between": "outer",
        "after": None,
    }


async def test_trajectory_closed_by_another_task_leaves_that_task_its_span(recorded):
    """The garbage collector closes a generator in any task: here, in one inside the trajectory."""

    def steps():
        with rollout_trace_attr(name="closed"):
            yield

    async def other() -> None:
        with trace.get_tracer("library").start_as_current_span("request"):
            running.close()
            turn("x")

    outside = otel_context.get_current()
    running = steps()
    next(running)
    await asyncio.create_task(other())
    otel_context.attach(outside)
    known = {s.name: s.span for s in recorded()}
    assert known["turn"].parent_span_id == known["request"].span_id
    assert known["request"].parent_span_id == known["closed"].span_id
