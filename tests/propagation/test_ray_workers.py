"""What a job's workers are given: variables, without credentials in Ray's logs, and a setup hook."""

import json
import os

import pytest
import ray
from ray import cloudpickle
from ray.runtime_env import RuntimeEnv

from otel_rollout import settings
from otel_rollout.propagation import ray_names, ray_workers
from otel_rollout.propagation.ray_workers import HIDDEN, arranged
from otel_rollout.ray import ray_runtime_env, runtime_env_hook
from otel_rollout.runs.ray_job import RECEIVER_MARK

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


def test_variables_are_copied_and_credentials_hidden(variables):
    """Settings stand in the runtime_env, which Ray logs; what may be a credential does not."""
    given = ray_runtime_env()["env_vars"]
    assert given["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    assert given["OTEL_ROLLOUT_SPOOL_DIR"] == os.environ["OTEL_ROLLOUT_SPOOL_DIR"]
    hidden = {name for name, value in given.items() if value == HIDDEN}
    assert hidden == {"MLFLOW_TRACKING_TOKEN", "WANDB_BASE_URL", settings.CONFIG_VARIABLE}
    assert "AWS_SECRET_ACCESS_KEY" not in given
    assert "sesame" not in json.dumps(given)


def test_the_hook_puts_credentials_in_unless_an_actor_has_its_own(variables, monkeypatch):
    """What stands as hidden is replaced in the worker; a task's or actor's own variable stays."""
    hook = cloudpickle.loads(cloudpickle.dumps(ray_runtime_env()[HOOK]))
    monkeypatch.setattr("otel_rollout.propagation.instrument.instrument_worker", lambda: None)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", HIDDEN)
    monkeypatch.setenv("WANDB_BASE_URL", "of this actor")
    hook()
    assert os.environ["MLFLOW_TRACKING_TOKEN"] == "sesame"
    assert os.environ["WANDB_BASE_URL"] == "of this actor"


def test_the_users_variables_win(variables):
    """A runtime_env of the user's keeps its values, and is not changed in place."""
    given = {"env_vars": {"MLFLOW_TRACKING_URI": "mine", "A": "1"}, "working_dir": "/tmp"}
    prepared = ray_runtime_env(given)
    assert prepared["working_dir"] == "/tmp"
    assert prepared["env_vars"]["MLFLOW_TRACKING_URI"] == "mine"
    assert prepared["env_vars"]["A"] == "1"
    assert given == {"env_vars": {"MLFLOW_TRACKING_URI": "mine", "A": "1"}, "working_dir": "/tmp"}


def test_a_runtime_env_object_stays_one(variables):
    """Ray's own class is understood, and validates what is added."""
    given = RuntimeEnv(env_vars={"A": "1"})
    prepared = ray_runtime_env(given)
    assert isinstance(prepared, RuntimeEnv)
    assert prepared["env_vars"]["A"] == "1"
    assert RECEIVER_MARK in prepared["env_vars"]
    assert RECEIVER_MARK not in given["env_vars"]


def test_preparing_twice_is_preparing_once(variables):
    """``instrument()``, the helper and RAY_RUNTIME_ENV_HOOK compose: one hook, and Ray refuses a second."""
    prepared = ray_runtime_env({"env_vars": {}})
    assert ray_runtime_env(prepared) is prepared
    assert arranged({"runtime_env": prepared}, {})[0]["runtime_env"] is prepared


def test_with_tracing_off_nothing_is_added(fresh_process):
    """A job that does not trace is started as it would be without us."""
    given = {"env_vars": {"A": "1"}}
    assert ray_runtime_env(given) is given
    assert arranged({"num_cpus": 1}, {}) == ({"num_cpus": 1}, None)


@pytest.mark.parametrize("hook", [user_hook, f"{__name__}.user_hook"])
def test_the_users_hook_is_called(hook, variables, monkeypatch):
    """A function or the name of one: called before ours, once."""
    monkeypatch.setattr(
        "otel_rollout.propagation.instrument.instrument_worker", lambda: called.append("ours")
    )
    called.clear()
    ray_runtime_env({HOOK: hook})[HOOK]()
    assert called == ["user's hook", "ours"]


def test_a_failing_hook_of_the_users_fails(variables):
    """Whether a worker may live without its setup is the user's decision."""
    with pytest.raises(ModuleNotFoundError):
        ray_runtime_env({HOOK: "no_such_module.setup"})[HOOK]()


def test_the_hook_names_nothing_of_ours(variables):
    """It is pickled by value: a worker without this package can load it."""
    pickled = cloudpickle.dumps(ray_runtime_env()[HOOK])
    assert b"otel_rollout_worker_setup" in pickled
    state = cloudpickle.loads(pickled).__globals__
    assert not [name for name in state if not name.startswith("__")]


@pytest.mark.parametrize("key", ["container", "image_uri"])
def test_beside_a_container_only_variables_are_given(key, variables, caplog):
    """Ray allows no hook there: workers still record, which is said, and no credential is logged by Ray."""
    prepared = ray_runtime_env({key: "x"})
    assert HOOK not in prepared
    assert RECEIVER_MARK not in prepared["env_vars"]
    assert "run_id" in prepared["env_vars"][settings.CONFIG_VARIABLE]
    assert "MLFLOW_TRACKING_TOKEN" not in prepared["env_vars"]
    assert key in caplog.text


def test_a_hook_that_another_job_left_is_not_replaced(variables, caplog):
    """Ray refuses a second hook; the job keeps the one it has."""
    given = {"env_vars": {"__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR": "other.hook"}}
    assert HOOK not in ray_runtime_env(given)
    assert "hook of another job" in caplog.text


def test_a_submitted_job_has_no_key_twice(variables, monkeypatch):
    """``ray job submit`` has a runtime_env of its own, which Ray merges in unless a key is in both."""
    theirs = {"env_vars": {"MLFLOW_TRACKING_URI": "theirs"}, HOOK: f"{__name__}.user_hook", "pip": ["x"]}
    variable = json.dumps({"runtime_env": theirs, "metadata": {"a": "b"}})
    arguments, submitted = arranged({"num_cpus": 1}, {ray_workers.SUBMITTED_JOB: variable})
    merged = json.loads(submitted or "")
    assert merged["metadata"] == {"a": "b"}
    assert merged["runtime_env"].keys() == {"env_vars", "pip"}
    assert not merged["runtime_env"].keys() & (arguments["runtime_env"].keys() - {"env_vars"})
    assert "MLFLOW_TRACKING_URI" not in arguments["runtime_env"]["env_vars"]
    monkeypatch.setattr("otel_rollout.propagation.instrument.instrument_worker", lambda: None)
    called.clear()
    arguments["runtime_env"][HOOK]()
    assert called == ["user's hook"]


def test_a_job_config_is_kept(variables):
    """``ray.init(job_config=…)`` has a runtime_env of its own, to which ours is added."""
    config = ray.job_config.JobConfig(runtime_env={"env_vars": {"A": "1"}})
    arguments, _ = arranged({"job_config": config}, {})
    assert arguments["runtime_env"]["env_vars"]["A"] == "1"


def test_a_ray_that_is_not_understood_gets_no_hook(variables, monkeypatch):
    """Where a name is missing, nothing would take carriers off."""

    def missing() -> None:
        raise ray_names.UnsupportedRay("a name")

    monkeypatch.setattr(ray_names, "look_up", missing)
    assert HOOK not in ray_runtime_env()


@pytest.mark.internal_errors
def test_the_hook_of_rays_environment_never_raises(variables, monkeypatch, caplog):
    """``ray.init`` goes on with the runtime_env it had."""
    monkeypatch.setattr("otel_rollout.ray.instrument", lambda: None)
    monkeypatch.setattr("otel_rollout.ray.ray_runtime_env", lambda given: 1 / 0)
    given = {"env_vars": {}}
    assert runtime_env_hook(given) is given
    assert "internal error" in caplog.text
