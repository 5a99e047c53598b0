"""Propagation is switched on and off, with supported and unsupported Ray."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
import ray._private.function_manager as function_manager
import ray._private.worker as ray_worker
import ray.actor
import ray.remote_function

from otel_rollout.record.propagation import instrument, ray_outgoing_calls, ray_private_api, ray_worker_setup
from otel_rollout.record.propagation.instrument import instrument_worker
from otel_rollout.record.propagation.ray_private_api import UnsupportedRay, look_up
from otel_rollout.record.runs import ray_job

IMPORTS_RAY_LATE = Path(__file__).parent / "programs" / "imports_ray_late.py"
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
    """Replace ``ray.init`` by a function that records its arguments and environment."""
    calls = []
    monkeypatch.setattr(ray, "init", lambda *args, **kwargs: calls.append((args, kwargs, dict(os.environ))))
    return calls


def test_installed_ray_has_every_private_name():
    """All names are found, with the expected parameters."""
    assert look_up().actor_handle is ray.actor.ActorHandle


@pytest.mark.parametrize(("owner", "name"), NAMES, ids=[name for _, name in NAMES])
def test_missing_name_of_ray_leaves_its_calls_unpatched(owner, name, monkeypatch, caplog):
    """One warning has Ray's version and the remedy; thread pools are patched."""
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


def test_method_with_other_parameters_counts_as_missing(monkeypatch):
    """A method that Ray has rewritten is not patched."""
    monkeypatch.setattr(ray.actor.ActorHandle, "_actor_method_call", lambda self, call: None)
    with pytest.raises(UnsupportedRay, match="_actor_method_call"):
        look_up()


def test_module_that_moved_counts_as_missing(monkeypatch):
    """A module whose import fails counts as missing too."""
    monkeypatch.setattr(ray.actor, "signature", os)
    with pytest.raises(UnsupportedRay, match="signature"):
        look_up()
    with pytest.raises(UnsupportedRay, match="no_such_module"):
        ray_private_api._module("ray.no_such_module")


def test_execution_information_without_function_counts_as_missing(monkeypatch):
    """Propagation must be able to replace the function that a worker runs."""
    monkeypatch.setattr(function_manager, "FunctionExecutionInfo", tuple)
    with pytest.raises(UnsupportedRay, match="FunctionExecutionInfo"):
        look_up()


def test_ray_is_patched_when_the_program_imports_it():
    """``instrument()`` does not import Ray, which is slow or not installed."""
    ran = subprocess.run([sys.executable, IMPORTS_RAY_LATE], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == {
        "ray imported by instrument": False,
        "submit patched": True,
        "init patched": True,
        "remote patched": True,
        "init patched after uninstrument": False,
    }


@pytest.mark.internal_errors
def test_failing_patch_of_ray_is_logged_and_raises_nothing(monkeypatch, caplog):
    """``instrument()`` never raises."""
    monkeypatch.setattr(ray_outgoing_calls, "install", lambda *args: 1 / 0)
    instrument.instrument()
    assert "internal error while instrumenting Ray" in caplog.text


def test_failing_patch_of_a_worker_raises_and_undoes_the_others(monkeypatch):
    """The setup hook gets the error, and removes carriers itself."""
    original = vars(function_manager.FunctionActorManager)["get_execution_info"]
    monkeypatch.setattr(ray_outgoing_calls, "install", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        instrument_worker()
    assert vars(function_manager.FunctionActorManager)["get_execution_info"] is original


@pytest.mark.parametrize("first", [instrument_worker, instrument.instrument])
def test_worker_is_instrumented_once(first):
    """The setup hook may run where ``instrument()`` has been called."""
    original = vars(function_manager.FunctionActorManager)["get_execution_info"]
    first()
    patched = vars(function_manager.FunctionActorManager)["get_execution_info"]
    instrument_worker()
    assert patched is not original
    assert vars(function_manager.FunctionActorManager)["get_execution_info"] is patched


def test_ray_init_keeps_its_arguments_and_gets_a_runtime_env(init, tracing):
    """The runtime_env prepares the workers."""
    instrument.instrument()
    ray.init("10.0.0.1:6379", num_cpus=2)
    args, kwargs, _ = init[0]
    assert (args, kwargs["num_cpus"]) == (("10.0.0.1:6379",), 2)
    assert ray_job.RECEIVER_MARK in kwargs["runtime_env"]["env_vars"]


@pytest.mark.parametrize("arguments", [{"address": "ray://host:10001"}, {"address": "auto"}, {}])
def test_ray_client_gets_no_runtime_env(arguments, init, tracing, monkeypatch):
    """Ray Client's calls pass through a proxy that is not instrumented."""
    monkeypatch.setenv("RAY_ADDRESS", "ray://host:10001")
    instrument.instrument()
    ray.init(**arguments)
    assert init[0][1] == arguments


def test_variable_of_a_submitted_job_changes_during_ray_init_only(init, tracing, monkeypatch):
    """The prepared hook calls the submitted one, which Ray must not find twice."""
    before = '{"runtime_env": {"worker_process_setup_hook": "a.b"}}'
    monkeypatch.setenv(ray_worker_setup.SUBMITTED_JOB, before)
    instrument.instrument()
    ray.init()
    assert "a.b" not in init[0][2][ray_worker_setup.SUBMITTED_JOB]
    assert os.environ[ray_worker_setup.SUBMITTED_JOB] == before


@pytest.mark.internal_errors
def test_ray_starts_when_preparing_workers_fails(init, tracing, monkeypatch, caplog):
    """Invalid JSON in the variable of a submitted job is left for Ray to report."""
    monkeypatch.setenv(ray_worker_setup.SUBMITTED_JOB, "{")
    instrument.instrument()
    ray.init(num_cpus=2)
    assert init[0][1] == {"num_cpus": 2}
    assert "internal error while preparing Ray's workers" in caplog.text


@pytest.mark.internal_errors
def test_call_is_sent_when_adding_the_carrier_fails(tracing, monkeypatch, caplog):
    """The sending side never raises into ``.remote()``."""
    import otel_rollout

    given = []
    monkeypatch.setattr(
        ray.remote_function.RemoteFunction, "_remote", lambda self, args, kwargs: given.append(kwargs)
    )
    instrument.instrument()
    with otel_rollout.rollout_trace_attr(step=1):
        ray.remote_function.RemoteFunction._remote(object(), [], {"a": 1})  # no attribute of Ray's on it
        flat = ray.actor.signature.flatten_args([], [], ray_outgoing_calls.KeywordArguments({}, object()))
    assert given == [{"a": 1}]
    assert flat == []
    assert "internal error while preparing a call" in caplog.text


@pytest.mark.internal_errors
def test_call_runs_when_its_carrier_cannot_be_read(caplog):
    """The receiving side never raises into the user's function."""
    from otel_rollout.record.propagation.ray_incoming_calls import receiving

    assert receiving(lambda x: x)(5, **{ray_outgoing_calls.ARGUMENT: b"{"}) == 5
    assert "internal error while reading the context" in caplog.text
