"""Switching propagation on and off, with Rays that we understand and Rays that we do not."""

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import ray
import ray._private.function_manager as function_manager
import ray._private.worker as ray_worker
import ray.actor
import ray.remote_function

from otel_rollout.propagation import instrument, ray_names, ray_send, ray_workers
from otel_rollout.propagation.ray_names import UnsupportedRay, look_up
from otel_rollout.runs import ray_job

NAMES = [
    (ray.actor, "signature"),
    (ray.actor.signature, "flatten_args"),
    (ray.actor.signature, "recover_args"),
    (ray.actor, "ActorHandle"),
    (ray.actor.ActorHandle, "_actor_method_call"),
    (ray.actor, "ActorClass"),
    (ray.actor.ActorClass, "_remote"),
    (ray.remote_function, "RemoteFunction"),
    (ray.remote_function.RemoteFunction, "_remote"),
    (function_manager, "FunctionActorManager"),
    (function_manager.FunctionActorManager, "get_execution_info"),
    (function_manager, "FunctionExecutionInfo"),
    (ray_worker, "Worker"),
    (ray_worker.Worker, "current_cluster_and_job"),
]


@pytest.fixture(autouse=True)
def uninstrumented():
    yield
    instrument.uninstrument()


@pytest.fixture
def init(monkeypatch):
    """``ray.init`` as a record of what it was called with."""
    calls = []
    monkeypatch.setattr(ray, "init", lambda *args, **kwargs: calls.append((args, kwargs, dict(os.environ))))
    return calls


def test_this_ray_is_understood():
    """Every private name is there and is what it was."""
    assert look_up().actor_handle is ray.actor.ActorHandle


@pytest.mark.parametrize(("owner", "name"), NAMES, ids=[name for _, name in NAMES])
def test_with_a_name_missing_nothing_of_rays_calls_is_patched(owner, name, monkeypatch, caplog):
    """It is said once, with Ray's version and what to do; thread pools are taken care of all the same."""
    submit = ThreadPoolExecutor.submit
    remote = ray.remote_function.RemoteFunction._remote
    monkeypatch.delattr(owner, name)
    with pytest.raises(UnsupportedRay, match=name):
        look_up()
    instrument.instrument()
    instrument.instrument()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert all(part in caplog.text for part in (ray.__version__, name, "carry_context"))
    assert ThreadPoolExecutor.submit is not submit
    if name not in ("RemoteFunction", "_remote"):
        assert ray.remote_function.RemoteFunction._remote is remote


def test_a_name_with_other_parameters_is_a_missing_name(monkeypatch):
    """A method that was rewritten is not patched blindly."""
    monkeypatch.setattr(ray.actor.ActorHandle, "_actor_method_call", lambda self, call: None)
    with pytest.raises(UnsupportedRay, match="_actor_method_call"):
        look_up()


def test_a_module_that_moved_is_a_missing_name(monkeypatch):
    """So is one whose import fails."""
    monkeypatch.setattr(ray.actor, "signature", os)
    with pytest.raises(UnsupportedRay, match="signature"):
        look_up()
    with pytest.raises(UnsupportedRay, match="no_such_module"):
        ray_names._module("ray.no_such_module")


def test_information_without_a_function_is_a_missing_name(monkeypatch):
    """What the worker runs must be replaceable."""
    monkeypatch.setattr(function_manager, "FunctionExecutionInfo", tuple)
    with pytest.raises(UnsupportedRay, match="FunctionExecutionInfo"):
        look_up()


def test_without_ray_thread_pools_are_taken_care_of(monkeypatch):
    """Programs that do not use Ray may call it too."""
    submit, init = ThreadPoolExecutor.submit, ray.init
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    instrument.instrument()
    assert ThreadPoolExecutor.submit is not submit
    assert ray.init is init


@pytest.mark.internal_errors
def test_trouble_while_instrumenting_is_reported_and_nothing_else(monkeypatch, caplog):
    """instrument() never raises."""
    monkeypatch.setattr(ray_send, "install", lambda *args: 1 / 0)
    instrument.instrument()
    assert "internal error while instrumenting Ray" in caplog.text


def test_a_worker_that_cannot_be_instrumented_is_as_before(monkeypatch):
    """All or nothing: its setup hook hears of it, and takes carriers off by itself."""
    original = vars(function_manager.FunctionActorManager)["get_execution_info"]
    monkeypatch.setattr(ray_send, "install", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        instrument.instrument_worker()
    assert vars(function_manager.FunctionActorManager)["get_execution_info"] is original


def test_a_worker_is_instrumented_once(monkeypatch):
    """The setup hook may run where instrument() has been called."""
    instrument.instrument_worker()
    patched = vars(function_manager.FunctionActorManager)["get_execution_info"]
    instrument.instrument_worker()
    assert vars(function_manager.FunctionActorManager)["get_execution_info"] is patched


def test_ray_init_gets_what_it_was_given_and_our_part(init, tracing):
    """Arguments stay; the runtime_env prepares the workers."""
    instrument.instrument()
    ray.init("local", num_cpus=2)
    args, kwargs, _ = init[0]
    assert (args, kwargs["num_cpus"]) == (("local",), 2)
    assert ray_job.RECEIVER_MARK in kwargs["runtime_env"]["env_vars"]


@pytest.mark.parametrize("arguments", [{"address": "ray://host:10001"}, {"address": "auto"}, {}])
def test_ray_client_is_left_alone(arguments, init, tracing, monkeypatch):
    """Its calls go through a proxy that is not instrumented."""
    monkeypatch.setenv("RAY_ADDRESS", "ray://host:10001")
    instrument.instrument()
    ray.init(**arguments)
    assert init[0][1] == arguments


def test_a_submitted_jobs_variable_is_changed_for_the_call_only(init, tracing, monkeypatch):
    """The hook in it is called by ours, and must not be found twice."""
    before = '{"runtime_env": {"worker_process_setup_hook": "a.b"}}'
    monkeypatch.setenv(ray_workers.SUBMITTED_JOB, before)
    instrument.instrument()
    ray.init()
    assert "a.b" not in init[0][2][ray_workers.SUBMITTED_JOB]
    assert os.environ[ray_workers.SUBMITTED_JOB] == before


@pytest.mark.internal_errors
def test_ray_starts_when_our_part_fails(init, tracing, monkeypatch, caplog):
    """A submitted job's variable that is no JSON is Ray's to complain about."""
    monkeypatch.setenv(ray_workers.SUBMITTED_JOB, "{")
    instrument.instrument()
    ray.init(num_cpus=2)
    assert init[0][1] == {"num_cpus": 2}
    assert "internal error while preparing Ray's workers" in caplog.text


@pytest.mark.internal_errors
def test_a_call_goes_out_when_our_part_fails(tracing, monkeypatch, caplog):
    """The sending side never raises into ``.remote()``."""
    import otel_rollout

    given = []
    monkeypatch.setattr(
        ray.remote_function.RemoteFunction, "_remote", lambda self, args, kwargs: given.append(kwargs)
    )
    instrument.instrument()
    with otel_rollout.rollout_trace_attr(step=1):
        ray.remote_function.RemoteFunction._remote(object(), [], {"a": 1})  # no attribute of Ray's on it
        flat = ray.actor.signature.flatten_args([], [], ray_send.KeywordArguments({}, object()))
    assert given == [{"a": 1}]
    assert flat == []
    assert "internal error while preparing a call" in caplog.text


@pytest.mark.internal_errors
def test_a_context_that_cannot_be_read_leaves_the_call(caplog):
    """The receiving side never raises into the function."""
    from otel_rollout.propagation.ray_receive import receiving

    assert receiving(lambda x: x)(5, **{ray_send.ARGUMENT: b"{"}) == 5
    assert "internal error while reading the context" in caplog.text
