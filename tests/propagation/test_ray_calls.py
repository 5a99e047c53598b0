"""Ray calls of every kind inside a trajectory are in one trace."""

import asyncio
import time

import pytest
import ray
from opentelemetry import trace
from ray.util import ActorPool

import otel_rollout
from otel_rollout import rollout_trace_attr
from otel_rollout.record.propagation import instrument
from tests.fake_server import serving
from tests.fresh_process import fresh_process
from tests.integrations.distributions import add_instrumentor, add_library
from tests.propagation import actors
from tests.propagation.support import Job, prepare
from tests.ray_start import start_ray
from tests.spool_reader import tree

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A local cluster with an instrumented driver."""
    directory = tmp_path_factory.mktemp("job")
    with pytest.MonkeyPatch.context() as patched:
        prepare(directory, patched)
        add_library(directory / "site", "raylib")
        add_instrumentor(directory / "site", "opentelemetry-instrumentation-raylib", "raylib")
        with fresh_process():
            otel_rollout.configure(
                {"test-file": {"path": str(directory / "delivered")}},
                project_name="project",
                instrument="raylib",
            )
            instrument.instrument()
            start_ray(lambda: ray.init("local", num_cpus=8, include_dashboard=False, logging_level="ERROR"))
            yield Job(directory / "spool")
            ray.shutdown()
            instrument.uninstrument()


@pytest.fixture(scope="module")
def sync(job):
    return actors.Sync.remote()


@pytest.fixture(scope="module")
def asynchronous(job):
    return actors.Asyncio.remote()


@pytest.fixture(scope="module")
def decorated_actors(job):
    return actors.Decorated.remote(), actors.DecoratedAsyncio.remote()


def one_trace(job, trajectory, works: int):
    """Check the root, ``works`` operations below it, and the identity."""
    spans = job.spans(trajectory.trace_id, works + 1)
    assert tree(spans) == {"rollout_trace": ["work"] * works}
    for span in spans:
        identity = [span.attributes[f"rollout.{name}"] for name in ("step", "sample_index", "validate")]
        assert identity == [3, "row", True]
        assert [type(value) for value in identity] == [int, str, bool]


def trajectory():
    return rollout_trace_attr("row", step=3, validate=True)


def test_tasks_continue_the_trajectory(job):
    """The tasks have arguments or none, options, several results, or call other tasks."""
    with trajectory() as t:
        ray.get(actors.task.remote(1))
        ray.get(actors.task_without_arguments.remote())
        ray.get(actors.task.options(num_cpus=0.5, name="named").remote())
        ray.get(actors.two_results.remote())
        ray.get(actors.nested.remote())
    one_trace(job, t, 6)


def test_spans_of_other_libraries_join_in_workers(job):
    """A task without an operation of ours: a plain tracer, and the chosen instrumentor, are recorded."""
    pytest.importorskip("opentelemetry.instrumentation")
    with trajectory() as t:
        ray.get(actors.library_task.remote())
    spans = job.spans(t.trace_id, 3)
    assert tree(spans) == {"rollout_trace": [{"library": ["call of raylib"]}]}
    assert {span.attributes["rollout.sample_index"] for span in spans} == {"row"}


@pytest.mark.parametrize("kwargs", [{}, {"a": 1}, {"kwargs": {"b": 2}, "args": [3], "self_": 4}])
def test_arguments_arrive_as_they_were_given(job, sync, asynchronous, kwargs):
    """Functions that take any keyword get only the caller's keywords."""
    with trajectory():
        given = dict(kwargs)
        assert ray.get(actors.task.remote(1, 2, **kwargs)) == ((1, 2), kwargs)
        assert ray.get(sync.method.remote(1, **kwargs)) == ((1,), kwargs)
        assert ray.get(asynchronous.method.remote(**kwargs)) == kwargs
        assert kwargs == given


def test_wrong_arguments_are_refused(job, sync):
    """Ray checks the caller's arguments against the signature of the user's function."""
    with trajectory():
        with pytest.raises(TypeError, match="too many positional arguments"):
            actors.task_without_arguments.remote(1)
        with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
            sync.without_arguments.remote(nonsense=1)


def test_exceptions_of_remote_code_arrive_unchanged(job, sync):
    """Type and message are those of the remote code, which ran inside the trajectory."""
    with trajectory() as t:
        with pytest.raises(KeyError, match="mine"):
            ray.get(actors.failing_task.remote())
        with pytest.raises(ValueError, match="mine"):
            ray.get(sync.fail.remote())
    one_trace(job, t, 1)


def test_methods_of_every_kind_continue_the_trajectory(job, sync):
    """The methods are plain, inherited, static and class methods, with options.

    One is ``__ray_call__``.
    """
    with trajectory() as t:
        ray.get(sync.method.remote())
        ray.get(sync.without_arguments.options(name="named").remote())
        ray.get(sync.inherited.remote())
        assert ray.get(sync.static.remote("s")) == "s"
        assert ray.get(sync.of_class.remote("c"))[1] == "c"
        assert ray.get(sync.__ray_call__.remote(lambda self, x: actors.work(x), 5)) == 5
    one_trace(job, t, 6)
    assert ray.get(sync.active.remote()) == 0


def test_constructor_of_an_actor_belongs_to_its_creator(job):
    """The actor's later work does not belong to the trajectory that created the actor."""
    with trajectory() as t:
        made = actors.Sync.options(num_cpus=0.1).remote(label="made")
        dynamic = ray.remote(type("Sub", (actors.Base,), {})).options(num_cpus=0).remote()
        ray.get(dynamic.inherited.remote())
    assert ray.get(made.active.remote()) == 0
    one_trace(job, t, 2)
    ray.kill(made)
    ray.kill(dynamic)


def test_named_actors_and_actor_pools_continue_the_trajectory(job):
    """A handle is found by name, is created if it is missing, or is in an ActorPool."""
    keep = actors.Sync.options(name="server").remote()
    with trajectory() as t:
        found = ray.get_actor("server")
        ray.get(found.without_arguments.remote())
        again = actors.Sync.options(name="server", get_if_exists=True).remote()
        ray.get(again.without_arguments.remote())
        pool = ActorPool([keep])
        assert list(pool.map(lambda a, v: a.static.remote(v), [1, 2])) == [1, 2]
        new = actors.Sync.options(name="other", get_if_exists=True).remote("made")
        ray.get(new.active.remote())
    one_trace(job, t, 5)
    ray.kill(keep)
    ray.kill(new)


def test_generators_continue_the_trajectory_at_every_step(job, sync, asynchronous):
    """Tasks and methods yield, synchronously or not."""
    with trajectory() as t:
        assert [ray.get(r) for r in actors.generator_task.remote(3)] == [0, 1, 2]
        assert [ray.get(r) for r in sync.stream.remote(2)] == [0, 1]
        assert [ray.get(r) for r in asynchronous.stream.remote(2)] == [0, 1]
        dynamic = actors.generator_task.options(num_returns=2).remote(2)
        assert ray.get(dynamic) == [0, 1]
    one_trace(job, t, 9)
    assert ray.get([sync.active.remote(), asynchronous.active.remote()]) == [0, 0]
    assert int(t.trace_id, 16) in ray.get(sync.closed.remote())
    assert int(t.trace_id, 16) in ray.get(asynchronous.closed.remote())


def test_call_between_the_steps_of_a_generator_is_outside_its_trajectory(job, asynchronous):
    """A generator that waits for its consumer changes no other call's context."""
    with trajectory() as t:
        steps = asynchronous.stream.remote(3, pause=0.2)
        ray.get(next(steps))
    assert ray.get(asynchronous.active.remote()) == 0
    assert len([ray.get(step) for step in steps]) == 2
    one_trace(job, t, 3)


def test_cancelled_generator_is_closed_inside_its_trajectory(job, asynchronous):
    """The consumer stops early, and the generator cleans up in the trajectory."""
    with trajectory() as t:
        steps = asynchronous.stream.remote(1000, pause=0.05)
        ray.get(next(steps))
        ray.cancel(steps)
        deadline = time.monotonic() + 15
        while int(t.trace_id, 16) not in ray.get(asynchronous.closed.remote()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert ray.get(asynchronous.active.remote()) == 0


def test_cancelled_coroutine_cleans_up_inside_its_trajectory(job, asynchronous):
    """``ray.cancel`` reaches the user's coroutine."""
    with trajectory() as t:
        waiting = asynchronous.forever.remote()
        ray.get(asynchronous.active.remote())
        ray.cancel(waiting)
        with pytest.raises(ray.exceptions.TaskCancelledError):
            ray.get(waiting)
    one_trace(job, t, 1)
    assert int(t.trace_id, 16) in ray.get(asynchronous.closed.remote())


def test_dropped_iterator_leaves_the_actor_outside_the_trajectory(job, sync):
    """The consumer of a synchronous generator drops the iterator half-way."""
    with trajectory():
        steps = sync.stream.remote(50)
        ray.get(next(steps))
        del steps
    assert ray.get(sync.active.remote()) == 0


def test_concurrent_calls_of_a_threaded_actor_keep_their_trajectories(job):
    """Four calls at a time run in four threads."""
    actor = actors.Threaded.remote()
    calls = []
    for label in range(4):
        with trajectory() as t:
            calls.append((t, actor.together.remote(label)))
    for t, call in calls:
        assert f"{ray.get(call, timeout=30):032x}" == t.trace_id
        one_trace(job, t, 1)
    ray.kill(actor)


def test_synchronous_method_of_an_asyncio_actor_continues_the_trajectory(job, asynchronous):
    """Work that an asynchronous method gives to an executor is in the trajectory."""
    with trajectory() as t:
        assert f"{ray.get(asynchronous.not_async.remote()):032x}" == t.trace_id
        ray.get(asynchronous.in_executor.remote())
    one_trace(job, t, 1)


def test_sampled_out_trajectory_has_no_spans_in_any_worker(job, sync, asynchronous):
    """No call records an orphan span, however deep."""
    before = len(job.all_spans())
    with rollout_trace_attr(step=9, trace=False):
        ray.get([actors.task.remote(), actors.nested.remote(), sync.method.remote()])
        ray.get(asynchronous.in_executor.remote())
        assert [ray.get(r) for r in asynchronous.stream.remote(2)] == [0, 1]
        assert ray.get(actors.where_am_i.remote()) == trace.get_current_span().get_span_context().trace_id
    assert len(job.all_spans()) == before


def test_request_of_a_task_carries_the_callers_span(job):
    """The header names the trajectory, with flags 00 if it is sampled out."""
    with serving() as server:
        for is_recorded in (True, False):
            with rollout_trace_attr(step=9, trace=is_recorded) as trajectory:
                assert ray.get(actors.request.remote(server.uri)) == 200
            assert server.received.pop().headers["traceparent"] == trajectory.id
        ray.get(actors.request.remote(server.uri))
        assert "traceparent" not in server.received.pop().headers


def test_call_outside_a_trajectory_is_in_no_trace(job, sync):
    """A call from outside carries no context."""
    assert ray.get([actors.where_am_i.remote(), sync.active.remote()]) == [0, 0]


def test_invocation_decorator_sees_only_the_users_arguments(job):
    """Ray lets a function change how it is called.

    Such a function does not see the carrier.
    """
    seen = []

    def decorator(invocation):
        def call(args, kwargs):
            seen.append((list(args), dict(kwargs)))
            return invocation(args, kwargs)

        return call

    def function(a, b=0):
        return actors.active_trace(), a, b

    function.__ray_invocation_decorator__ = decorator
    function.__module__ = "__main__"
    with trajectory() as t:
        assert ray.get(ray.remote(function).remote(1, b=2)) == (int(t.trace_id, 16), 1, 2)
    assert seen == [([1], {"b": 2})]


def test_decorated_classes_in_an_instrumented_process_carry_the_context_once(job, decorated_actors):
    """Decorator and patches together neither repeat nor lose the carrier."""
    decorated, asyncio_decorated = decorated_actors
    with trajectory() as t:
        assert ray.get(decorated.method.remote(1, a=2)) == ((1,), {"a": 2})
        assert ray.get(actors.decorated_task.remote(1)) == 1
        assert [ray.get(r) for r in asyncio_decorated.stream.remote(2)] == [0, 1]
    one_trace(job, t, 4)


def test_decorated_classes_without_patches_continue_the_trajectory(job, decorated_actors):
    """This process's patches are undone."""
    decorated, asyncio_decorated = decorated_actors
    instrument.uninstrument()
    try:
        with trajectory() as t:
            assert ray.get(actors.where_am_i.remote()) == 0
            assert ray.get(decorated.method.remote(1, a=2)) == ((1,), {"a": 2})
            assert ray.get(decorated.one.remote(value=5)) == 5
            assert ray.get(decorated.static.remote("s")) == "s"
            assert ray.get(decorated.of_class.remote("c")) == "c"
            assert ray.get(decorated.inherited.remote()) == "inherited"
            assert [ray.get(r) for r in decorated.stream.remote(2)] == [0, 1]
            assert ray.get(asyncio_decorated.method.remote(1)) == 1
            assert [ray.get(r) for r in asyncio_decorated.stream.remote(2)] == [0, 1]
            assert ray.get(actors.decorated_task.remote(1)) == 1
        one_trace(job, t, 11)
    finally:
        instrument.instrument()


def test_fifty_concurrent_trajectories_through_two_asyncio_actors_stay_apart(job):
    """In a hundred rounds, each span has its own trace's root and identity."""
    tool = actors.Tool.remote()
    agent = actors.Asyncio.remote(tool)

    async def rollout(step: int, index: int) -> str | None:
        async with rollout_trace_attr(sample_index=index, step=step) as t:
            await agent.through_tool.remote(index)
        return t.trace_id

    async def fifty(step: int) -> list[str | None]:
        return await asyncio.gather(*(rollout(step, index) for index in range(50)))

    steps = range(1000, 1100)
    index_of = {trace_id: n for step in steps for n, trace_id in enumerate(asyncio.run(fifty(step)))}
    assert len(index_of) == 5000
    by_trace = job.traces(set(index_of), 3 * 5000)
    for trace_id, index in index_of.items():
        spans = by_trace[trace_id]
        assert tree(spans) == {"rollout_trace": ["work", "work"]}
        assert {span.attributes["rollout.sample_index"] for span in spans} == {index}
        labels = [span.input["label"] for span in spans if span.name == "work"]
        assert sorted(labels) == [["agent", index], ["tool", index]]
    ray.kill(agent)
    ray.kill(tool)


def test_uninstrument_restores_every_attribute_of_ray(job):
    """Instrumenting again works."""
    from ray.actor import ActorClass, ActorHandle, signature
    from ray.remote_function import RemoteFunction

    places = [
        (ray, "init"),
        (signature, "flatten_args"),
        (ActorHandle, "_actor_method_call"),
        (ActorClass, "_remote"),
        (RemoteFunction, "_remote"),
    ]
    patched = [vars(owner)[name] for owner, name in places]
    instrument.instrument()
    assert [vars(owner)[name] for owner, name in places] == patched
    instrument.uninstrument()
    original = [vars(owner)[name] for owner, name in places]
    assert [function.__wrapped__ for function in patched] == original
    instrument.instrument()
