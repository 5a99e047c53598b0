"""Run a job on a started cluster: ``jobs_on_cluster.py <scenario> <address>``.

Remote functions are defined here, in ``__main__``. So they are pickled by value, and run in workers that
cannot import this package. Each scenario prints its result as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import ray

init_before_instrumenting = ray.init
HOOK_THAT_INSTRUMENTS = {"worker_process_setup_hook": "tests.propagation.programs.instruments_itself.setup"}


@ray.remote
def active(*args: Any, **kwargs: Any) -> Any:
    """Return what the worker sees: its trace, its arguments, its variables."""
    from opentelemetry import trace

    names = (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_TRACKING_TOKEN",
        "OTEL_SERVICE_NAME",
        "USER_HOOK",
        "USER_VARIABLE",
    )
    return {
        "trace": f"{trace.get_current_span().get_span_context().trace_id:032x}",
        "args": [args, kwargs],
        "variables": {name: os.environ[name] for name in names if name in os.environ},
    }


@ray.remote
def recorded(value: int) -> int:
    from otel_rollout import rollout_trace_op

    return rollout_trace_op(name="work")(lambda x: x)(value)


@ray.remote
class Plain:
    def method(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


@ray.remote
class Quiet:
    """An actor of a worker without the package."""

    def method(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    def stream(self, count: int) -> Any:
        for index in range(count):  # noqa: UP028 - Ray sends values in, which a range cannot take
            yield index

    def importable(self) -> bool:
        try:
            import otel_rollout  # noqa: F401 - the import is the test
        except ImportError:
            return False
        return True


def user_hook() -> None:
    os.environ["USER_HOOK"] = "ran"


def configure() -> None:
    import otel_rollout

    delivered = os.environ["OTEL_ROLLOUT_SPOOL_DIR"] + "-delivered.jsonl"
    otel_rollout.configure({"test-file": {"path": delivered}}, project_name="project", shutdown_timeout=1)


def connect(address: str, **arguments: Any) -> None:
    configure()
    if os.environ.get("INSTRUMENT", "yes") == "yes":
        from otel_rollout.record.propagation.instrument import instrument

        instrument()
        instrument()
    ray.init(address=address, logging_level="ERROR", namespace="tests", **arguments)


def call_inside_a_trajectory() -> dict[str, Any]:
    from otel_rollout import rollout_trace_attr

    with rollout_trace_attr(sample_index=1, step=2) as t:
        found: dict[str, Any] = ray.get(active.remote(1, a=2))
        ray.get(recorded.remote(5))
    return {"trajectory": t.trace_id, **found}


def plain_call(address: str) -> Any:
    """Run an instrumented job."""
    connect(address)
    return call_inside_a_trajectory()


def own_runtime_env(address: str) -> Any:
    """Run a job with its own setup hook and variables."""
    variables = {"USER_VARIABLE": "1", "MLFLOW_TRACKING_URI": "mine"}
    connect(address, runtime_env={"worker_process_setup_hook": user_hook, "env_vars": variables})
    return call_inside_a_trajectory()


def hook_that_instruments(address: str) -> Any:
    """Run a job whose setup hook is in a module that calls instrument()."""
    connect(address, runtime_env=HOOK_THAT_INSTRUMENTS)
    return call_actor_that_instruments()


def module_that_instruments(address: str) -> Any:
    """Run a job with an actor whose module calls instrument()."""
    connect(address)
    return call_actor_that_instruments()


def unprepared_hook_that_instruments(address: str) -> Any:
    """Run a job whose workers only that setup hook instruments; their variables switch tracing on."""
    runtime_env = {**environment_of_job(), **HOOK_THAT_INSTRUMENTS}
    ray.init(address=address, logging_level="ERROR", runtime_env=runtime_env)
    return call_actor_that_instruments()


def call_actor_that_instruments() -> dict[str, Any]:
    """Call an actor inside a trajectory, the last time after it has called uninstrument()."""
    from otel_rollout import rollout_trace_attr
    from tests.propagation.programs.instruments_itself import Actor

    with rollout_trace_attr(step=1) as t:
        actor = ray.remote(Actor).remote(1, a=2)
        calls = [actor.creation.remote(), actor.method.remote(1, a=2), actor.uninstrument.remote()]
        calls.append(actor.another_method.remote(1, a=2))
        created, before, _, after = ray.get(calls)
    return {"trajectory": t.trace_id, "seen": [created, before, after]}


def without_the_package(address: str) -> Any:
    """Run a job with an actor whose worker cannot import the package."""
    from otel_rollout import rollout_trace_attr

    connect(address)
    actor = Quiet.options(runtime_env={"env_vars": {"PYTHONPATH": os.environ["BLOCKED"]}}).remote()
    with rollout_trace_attr(step=1):
        return {
            "method": ray.get(actor.method.remote(1, a=2)),
            "stream": [ray.get(ref) for ref in actor.stream.remote(2)],
            "importable": ray.get(actor.importable.remote()),
        }


def make_a_detached_actor(address: str) -> Any:
    """Leave a detached actor behind, in a job without this package."""
    ray.init(address=address, logging_level="ERROR", namespace="tests")
    actor = Plain.options(name="left", lifetime="detached", num_cpus=0).remote()
    return ray.get(actor.method.remote())


def call_another_jobs_actor(address: str) -> Any:
    """Call the detached actor of the other job, in an instrumented job."""
    from otel_rollout import rollout_trace_attr

    connect(address)
    actor = ray.get_actor("left")
    with rollout_trace_attr(step=1):
        return ray.get(actor.method.remote(1, a=2))


def call_other_languages(address: str) -> Any:
    """Call a function, a class and a method in Java inside a trajectory."""
    from ray.job_config import JobConfig

    from otel_rollout import rollout_trace_attr

    connect(address, job_config=JobConfig(code_search_path=["/nowhere"]))
    function = ray.cross_language.java_function("example.Class", "function")
    java_class = ray.cross_language.java_actor_class("example.Class")
    said = []
    with rollout_trace_attr(step=1):
        actor = java_class.remote(1)
        sent = [actor, actor.method.remote(2), function.remote(3)]
        for call in (function, actor.method):
            try:
                call.remote(a=1)
            except TypeError as error:
                said.append(str(error))
        ray.kill(actor)
    return {"sent": len(sent), "refused": said}


def instrument_too_late(address: str) -> Any:
    """Call instrument() after ray.init(): this job's workers do not remove carriers."""
    from otel_rollout.record.propagation.instrument import instrument

    configure()
    ray.init(address=address, logging_level="ERROR")
    instrument()
    return call_inside_a_trajectory()["args"]


def unprepared_job_after_a_prepared_one(address: str) -> Any:
    """Start the second job by ``ray.init`` from before ``instrument()``."""
    connect(address)
    first = call_inside_a_trajectory()
    ray.shutdown()
    init_before_instrumenting(address=address, logging_level="ERROR")
    second = call_inside_a_trajectory()
    return {"first": first["trace"] == first["trajectory"], "second": second["trace"], "args": second["args"]}


@ray.remote(num_cpus=0)
class Rollout:
    """An actor that starts trajectories, and runs parts of its caller's."""

    def trajectory(self, name: str) -> str | None:
        from otel_rollout import rollout_trace_attr, rollout_trace_op

        with rollout_trace_attr(step=1) as t:
            rollout_trace_op(name=name)(len)("x")
        return t.trace_id

    def tool(self, name: str) -> None:
        from otel_rollout import rollout_trace_op

        rollout_trace_op(name=name)(len)("x")

    def pass_on(self, other: Any, name: str) -> None:
        ray.get(other.trajectory.remote(name))


def report(timeout: float = 30) -> dict[str, Any]:
    import otel_rollout

    found = otel_rollout.shutdown(timeout)
    pending = sum(count.pending for count in found.exporters.values())
    return {"recorded": found.recorded, "pending": pending, "lost": found.lost}


def second_run(address: str) -> Any:
    """Configure, end the run, and configure again on one cluster."""
    import otel_rollout

    connect(address)
    actor, other = Rollout.remote(), Rollout.remote()
    ray.get([actor.trajectory.remote("first"), other.trajectory.remote("first")])
    first = report()
    delivered = os.environ["OTEL_ROLLOUT_SPOOL_DIR"] + "-second.jsonl"
    otel_rollout.configure({"test-file": {"path": delivered}}, project_name="second")
    ray.get(actor.pass_on.remote(other, "begun in a worker called by a worker"))
    ray.get(actor.trajectory.remote("begun in a worker"))
    late = Rollout.remote()  # older Ray ends an actor that nobody refers to
    ray.get(late.trajectory.remote("begun in a new worker"))
    with otel_rollout.rollout_trace_attr(step=2):
        ray.get(actor.tool.remote("tool"))
        ray.get(recorded.remote(1))
    return {"first": first, "second": report()}


def environment_of_job() -> dict[str, Any]:
    names = ("OTEL_TRACES_EXPORTER", "OTEL_TEST_FILE", "OTEL_ROLLOUT_SPOOL_DIR", "PYTHONPATH")
    return {"env_vars": {name: os.environ[name] for name in names}}


def work_of_four_actors() -> dict[str, Any]:
    from otel_rollout import rollout_trace_attr
    from otel_rollout.record.runs import membership

    with rollout_trace_attr(step=1):
        actors = [Rollout.remote() for _ in range(4)]
        ray.get([actor.trajectory.remote("op") for actor in actors])
    return {"run": membership.decide().run_id, "report": report()}


def imported_after_init(address: str) -> Any:
    """Import the library when Ray runs already."""
    ray.init(address=address, logging_level="ERROR", runtime_env=environment_of_job())
    return work_of_four_actors()


def not_instrumented(address: str) -> Any:
    """Import the library first, and never call instrument()."""
    import otel_rollout  # noqa: F401 - it founds a run

    ray.init(address=address, logging_level="ERROR", runtime_env=environment_of_job())
    return work_of_four_actors()


def carried_after_init(address: str) -> Any:
    """Use a decorated actor, which needs no prepared worker, in such a job."""
    ray.init(address=address, logging_level="ERROR", runtime_env=environment_of_job())
    from otel_rollout import rollout_trace_attr, rollout_trace_op
    from otel_rollout.ray import carry_context

    @ray.remote
    @carry_context
    class Tool:
        def run(self) -> None:
            rollout_trace_op(name="tool")(len)("x")

    with rollout_trace_attr(step=7) as t:
        tool = Tool.remote()
        ray.get(tool.run.remote())
    return {"trajectory": t.trace_id, "report": report()}


def options_over_the_machines_variables(address: str) -> Any:
    """Run a configured job on machines whose variables are for other jobs."""
    from otel_rollout.record.runs import membership

    connect(address)
    actor = Rollout.remote()
    ray.get(actor.trajectory.remote("op"))
    return {"run": membership.decide().run_id, "report": report()}


def runtime_envs_of_their_own(address: str) -> Any:
    """Run an actor and a task with variables that the job does not have."""
    from otel_rollout.record.runs import membership

    connect(address)
    actor = Rollout.options(runtime_env={"env_vars": {"OTEL_ROLLOUT_PROJECT": "judge"}}).remote()
    ray.get(actor.trajectory.remote("of the actor"))
    ray.get(recorded.options(runtime_env={"env_vars": {"OTEL_ROLLOUT_RUN_ID": "tool"}}).remote(1))
    of_the_job = Rollout.remote()
    ray.get(of_the_job.trajectory.remote("of the job"))
    return {"run": membership.decide().run_id}


if __name__ == "__main__":
    scenario, cluster_address = sys.argv[1:]
    print(json.dumps(globals()[scenario](cluster_address)))
