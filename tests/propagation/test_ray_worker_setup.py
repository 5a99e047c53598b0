"""The job's runtime_env has variables, hidden credentials, and a setup hook."""

import json
import os

import pytest
import ray
from ray import cloudpickle
from ray.runtime_env import RuntimeEnv

from otel_rollout import settings
from otel_rollout.ray import ray_runtime_env
from otel_rollout.record.propagation import ray_private_api, ray_worker_setup
from otel_rollout.record.propagation.ray_worker_setup import HIDDEN, prepare
from otel_rollout.record.propagation.state import state
from otel_rollout.record.runs.ray_job import NODE_VARIABLES, RECEIVER_MARK, RECEIVES

HOOK = "worker_process_setup_hook"
called: list[str] = []


def user_hook() -> None:
    called.append("user's hook")


@pytest.fixture
def variables(tracing, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "sesame")
    monkeypatch.setenv("WANDB_BASE_URL", "https://me:sesame@wandb.local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not ours")
    monkeypatch.setenv(RECEIVES, "")  # the hook sets it


def test_variables_are_copied_and_credentials_hidden(variables):
    """Ray logs a runtime_env, so possible credentials are replaced there."""
    given = ray_runtime_env()["env_vars"]
    assert given["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    assert given["OTEL_ROLLOUT_SPOOL_DIR"] == os.environ["OTEL_ROLLOUT_SPOOL_DIR"]
    hidden = {name for name, value in given.items() if value == HIDDEN}
    assert hidden == {"MLFLOW_TRACKING_TOKEN", "WANDB_BASE_URL", settings.CONFIG_VARIABLE}
    assert "AWS_SECRET_ACCESS_KEY" not in given
    assert "sesame" not in json.dumps(given)


def test_variables_of_a_node_win(variables, monkeypatch):
    """What describes a machine, or its own Collector, is set by the hook where the node does not set it."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "node=driver")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://driver:4318")
    prepared = ray_runtime_env()
    assert not {"OTEL_RESOURCE_ATTRIBUTES", "OTEL_EXPORTER_OTLP_ENDPOINT"} & prepared["env_vars"].keys()
    hook = cloudpickle.loads(cloudpickle.dumps(prepared[HOOK]))
    monkeypatch.setattr("otel_rollout.propagation.ray_worker.instrument_worker", lambda: None)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "node=worker")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    hook()
    assert os.environ["OTEL_RESOURCE_ATTRIBUTES"] == "node=worker"
    assert os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://driver:4318"
    assert os.environ.pop(NODE_VARIABLES) == "OTEL_RESOURCE_ATTRIBUTES"


@pytest.mark.parametrize(
    "arguments",
    [
        {"address": "10.0.0.1:6379"},
        {"runtime_env": {"working_dir": "."}},
        {"job_config": ray.job_config.JobConfig(runtime_env={"env_vars": {"A": "1"}})},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_job_that_starts_no_cluster_or_has_a_runtime_env_gets_one(arguments, variables):
    """All others start a cluster, whose workers inherit what they need."""
    assert RECEIVER_MARK in prepare((), arguments, {}).arguments["runtime_env"]["env_vars"]
    assert prepare(("local",), {}, {}).arguments == {}
    assert prepare((), {"num_cpus": 1}, {"RAY_ADDRESS": "local"}).arguments == {"num_cpus": 1}


def test_call_that_starts_no_workers_is_left_alone(variables, monkeypatch):
    """Those of a connected process know their run; in local mode there are none."""
    assert prepare((), {"local_mode": True}, {}).arguments == {"local_mode": True}
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    state.run_of_workers = "first"
    assert prepare((), {"address": "10.0.0.1:6379"}, {}).arguments == {"address": "10.0.0.1:6379"}
    assert state.run_of_workers == "first"


@pytest.mark.parametrize("name", ["RAY_RUNTIME_ENV_HOOK", "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"])
def test_other_setup_hooks_are_joined_in_a_runtime_env(name, variables):
    """They may replace the hook that the cluster's workers inherit."""
    assert RECEIVER_MARK in prepare(("local",), {}, {name: "a.b"}).arguments["runtime_env"]["env_vars"]


def test_hook_sets_credentials_unless_an_actor_has_its_own(variables, monkeypatch):
    """Hidden values are replaced in the worker; variables of a task or actor stay."""
    hook = cloudpickle.loads(cloudpickle.dumps(ray_runtime_env()[HOOK]))
    monkeypatch.setattr("otel_rollout.propagation.ray_worker.instrument_worker", lambda: None)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", HIDDEN)
    monkeypatch.setenv("WANDB_BASE_URL", "of this actor")
    hook()
    assert os.environ["MLFLOW_TRACKING_TOKEN"] == "sesame"
    assert os.environ["WANDB_BASE_URL"] == "of this actor"


def test_variables_of_the_user_win(variables):
    """The given runtime_env is not changed in place."""
    given = {"env_vars": {"MLFLOW_TRACKING_URI": "mine", "A": "1"}, "working_dir": "/tmp"}
    prepared = ray_runtime_env(given)
    assert prepared["working_dir"] == "/tmp"
    assert prepared["env_vars"]["MLFLOW_TRACKING_URI"] == "mine"
    assert prepared["env_vars"]["A"] == "1"
    assert given == {"env_vars": {"MLFLOW_TRACKING_URI": "mine", "A": "1"}, "working_dir": "/tmp"}


def test_runtime_env_object_keeps_its_type(variables):
    """Ray's own class validates the added entries."""
    given = RuntimeEnv(env_vars={"A": "1"})
    prepared = ray_runtime_env(given)
    assert isinstance(prepared, RuntimeEnv)
    assert prepared["env_vars"]["A"] == "1"
    assert RECEIVER_MARK in prepared["env_vars"]
    assert RECEIVER_MARK not in given["env_vars"]


def test_prepared_runtime_env_is_returned_as_it_is(variables):
    """``instrument()`` and helper combine.

    Ray refuses a second hook.
    """
    prepared = ray_runtime_env({"env_vars": {}})
    assert ray_runtime_env(prepared) is prepared
    assert prepare((), {"runtime_env": prepared}, {}).arguments["runtime_env"] is prepared


def test_runtime_env_is_unchanged_when_tracing_is_off(fresh_process):
    """The job is started as without this package."""
    given = {"env_vars": {"A": "1"}}
    assert ray_runtime_env(given) is given
    assert prepare((), {"num_cpus": 1}, {}).arguments == {"num_cpus": 1}


@pytest.mark.parametrize("hook", [user_hook, f"{__name__}.user_hook"])
def test_hook_of_the_user_is_called_first(hook, variables, monkeypatch):
    """The user's hook is a function or a function's name, and is called once."""
    monkeypatch.setattr(
        "otel_rollout.propagation.ray_worker.instrument_worker", lambda: called.append("ours")
    )
    called.clear()
    ray_runtime_env({HOOK: hook})[HOOK]()
    assert called == ["user's hook", "ours"]


def test_failing_hook_of_the_user_raises(variables):
    """The user decides whether a worker may run without its setup."""
    with pytest.raises(ModuleNotFoundError):
        ray_runtime_env({HOOK: "no_such_module.setup"})[HOOK]()


def test_pickled_hook_names_no_module_of_this_package(variables):
    """A worker without this package can unpickle the hook."""
    pickled = cloudpickle.dumps(ray_runtime_env()[HOOK])
    assert b"otel_rollout_worker_setup" in pickled
    state = cloudpickle.loads(pickled).__globals__
    assert not [name for name in state if not name.startswith("__")]


@pytest.mark.parametrize("key", ["container", "image_uri"])
def test_container_excludes_the_hook_and_gets_variables_without_credentials(key, variables, caplog):
    """Ray allows no hook there, so workers record their own traces.

    One warning says so.
    """
    prepared = ray_runtime_env({key: "x"})
    assert HOOK not in prepared
    assert RECEIVER_MARK not in prepared["env_vars"]
    assert "run_id" in prepared["env_vars"][settings.CONFIG_VARIABLE]
    assert "MLFLOW_TRACKING_TOKEN" not in prepared["env_vars"]
    assert key in caplog.text


def test_inherited_hook_of_another_job_is_kept(variables, caplog):
    """Ray refuses a second hook."""
    given = {"env_vars": {"__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR": "other.hook"}}
    assert HOOK not in ray_runtime_env(given)
    assert "hook of another job" in caplog.text


def test_runtime_env_of_a_submitted_job_has_no_key_twice(variables, monkeypatch):
    """Ray merges both runtime_envs, and refuses a key that is in both."""
    theirs = {"env_vars": {"MLFLOW_TRACKING_URI": "theirs"}, HOOK: f"{__name__}.user_hook", "pip": ["x"]}
    variable = json.dumps({"runtime_env": theirs, "metadata": {"a": "b"}})
    preparation = prepare((), {"num_cpus": 1}, {ray_worker_setup.SUBMITTED_JOB: variable})
    arguments = preparation.arguments
    with preparation.during:
        merged = json.loads(os.environ[ray_worker_setup.SUBMITTED_JOB])
    assert merged["metadata"] == {"a": "b"}
    assert merged["runtime_env"].keys() == {"env_vars", "pip"}
    assert not merged["runtime_env"].keys() & (arguments["runtime_env"].keys() - {"env_vars"})
    assert "MLFLOW_TRACKING_URI" not in arguments["runtime_env"]["env_vars"]
    monkeypatch.setattr("otel_rollout.propagation.ray_worker.instrument_worker", lambda: None)
    called.clear()
    arguments["runtime_env"][HOOK]()
    assert called == ["user's hook"]


def test_runtime_env_of_a_job_config_is_kept(variables):
    """``ray.init(job_config=…)`` may contain a runtime_env."""
    config = ray.job_config.JobConfig(runtime_env={"env_vars": {"A": "1"}})
    arguments = prepare((), {"job_config": config}, {}).arguments
    assert arguments["runtime_env"]["env_vars"]["A"] == "1"


def test_unsupported_ray_gets_no_hook(variables, monkeypatch):
    """Workers of an unsupported Ray could not remove carriers."""

    def missing() -> None:
        raise ray_private_api.UnsupportedRay("a name")

    monkeypatch.setattr(ray_private_api, "look_up", missing)
    assert HOOK not in ray_runtime_env()
