"""What verl's driver does before it starts Ray: flags and environment become the job's set-up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

from otel_rollout import settings
from otel_rollout.integrations.verl import launching
from otel_rollout.runs import membership

IMPORT = """
import sys
before = set(sys.modules)
import verl
print("OURS", sorted(m for m in set(sys.modules) - before if m.startswith("otel_rollout.integrations")))
import ray
print("PATCHED", hasattr(ray.init, "__wrapped__") and "otel_rollout" in ray.init.__globals__["__name__"])
from verl.utils import rollout_trace
print("DECORATOR", rollout_trace.rollout_trace_op.__module__)
"""


@pytest.fixture(autouse=True)
def _propagation_undone(fresh_process: None) -> Any:
    import otel_rollout

    yield
    otel_rollout.uninstrument()


def _flag(config: Any, backend: str | None) -> Any:
    config.actor_rollout_ref.rollout.trace.backend = backend
    return config


def test_the_flag_alone_sets_the_job_up(
    verl_config: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """trace.backend=mlflow makes verl's project the experiment, for the driver and all it starts."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    get_ppo_ray_runtime_env(_flag(verl_config, "mlflow"))
    configured = membership.decide()
    assert (list(configured.exporters), configured.project_name) == (["mlflow"], "verl-tests")
    assert configured.experiment_name == "scripted"
    assert json.loads(os.environ[settings.CONFIG_VARIABLE])["project_name"] == "verl-tests"


def test_flag_and_variable_agree_on_otel(verl_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """trace.backend=otel is what OTEL_TRACES_EXPORTER says."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    get_ppo_ray_runtime_env(_flag(verl_config, "otel"))
    assert list(membership.decide().exporters) == ["console"]


def test_the_flag_wins_and_says_so(
    verl_config: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where flag and variable disagree, one line names both."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    get_ppo_ray_runtime_env(_flag(verl_config, "mlflow,console"))
    assert list(membership.decide().exporters) == ["mlflow", "console"]
    (line,) = [r.getMessage() for r in caplog.records if "the flag wins" in r.getMessage()]
    assert "mlflow,console" in line
    assert "OTEL_TRACES_EXPORTER=console" in line


def test_a_backend_that_is_not_installed_is_said(verl_config: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Training starts, untraced, and the error names the flag."""
    get_ppo_ray_runtime_env(_flag(verl_config, "nowhere"))
    assert not membership.decide().enabled
    assert [r for r in caplog.records if "trace.backend=nowhere" in r.getMessage()]


def test_mlflow_without_a_target_goes_where_verls_runs_go(
    verl_config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """verl's default database, on the driver's machine alone, and it is said."""
    get_ppo_ray_runtime_env(_flag(verl_config, "mlflow"))
    assert membership.decide().exporters["mlflow"]["tracking_uri"] == "sqlite:////tmp/mlruns.db"
    assert membership.decide().home_node
    assert [r for r in caplog.records if launching.DEFAULT_MLFLOW_URI in r.getMessage()]


def test_our_variables_name_project_and_experiment_over_verls(
    verl_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl always has a project name; who sets OTEL_ROLLOUT_PROJECT means it."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_ROLLOUT_PROJECT", "mine")
    get_ppo_ray_runtime_env(verl_config)
    assert (membership.decide().project_name, membership.decide().experiment_name) == ("mine", "scripted")


def test_nothing_asked_for_nothing_changed(verl_config: Any) -> None:
    """Without flag and variable verl's runtime environment and this process stay as they are."""
    made = get_ppo_ray_runtime_env(verl_config)
    assert made == get_ppo_ray_runtime_env.__wrapped__(verl_config)
    assert settings.CONFIG_VARIABLE not in os.environ


def test_the_plugins_name_travels_to_workers(verl_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or workers of other nodes would lack it, in versions that need the variable."""
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "otel_rollout.integrations.verl")
    made = get_ppo_ray_runtime_env(verl_config)
    assert made["env_vars"]["VERL_USE_EXTERNAL_MODULES"] == "otel_rollout.integrations.verl"


@pytest.mark.parametrize("configured", [True, False])
def test_importing_verl(configured: bool, tmp_path: Path) -> None:
    """Unconfigured, nothing of verl's or Ray's is replaced; configured, the plugin is in force at once."""
    environment = {**os.environ, "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path)}
    if configured:
        environment |= {"OTEL_TRACES_EXPORTER": "mlflow", "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"}
    command = [sys.executable, "-W", "ignore", "-c", IMPORT]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    said = dict(line.split(" ", 1) for line in ran.stdout.splitlines() if line.split(" ")[0].isupper())
    assert ran.returncode == 0, ran.stderr[-2000:]
    if configured:
        assert said["DECORATOR"] == "otel_rollout.integrations.verl.surface"
        assert said["PATCHED"] == "True"
    else:
        assert said["DECORATOR"] == "verl.utils.rollout_trace"
        assert said["PATCHED"] == "False"
        assert json.loads(said["OURS"].replace("'", '"')) == [
            "otel_rollout.integrations",
            "otel_rollout.integrations.verl",
            "otel_rollout.integrations.verl.imports",
            "otel_rollout.integrations.verl.seams",
        ]


ENDPOINT = {"otlp_traces_endpoint": "grpc://127.0.0.1:4317"}


@pytest.mark.parametrize(
    ("engine", "disabled", "warned"),
    [
        (ENDPOINT, True, True),
        (ENDPOINT, False, False),
        (ENDPOINT | {"disable_log_stats": False}, True, False),
        (ENDPOINT | {"disable_log_stats": True}, False, True),
        ({}, True, False),
    ],
)
def test_an_engine_without_statistics_is_warned_of_before_it_starts(
    verl_config: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    engine: dict[str, Any],
    disabled: bool,
    warned: bool,
) -> None:
    """vLLM's tracing together with verl's disable_log_stats ends the engine: the driver says what to set."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    verl_config.actor_rollout_ref.rollout.disable_log_stats = disabled
    verl_config.actor_rollout_ref.rollout.engine_kwargs = {"vllm": engine}
    get_ppo_ray_runtime_env(_flag(verl_config, "otel"))
    get_ppo_ray_runtime_env(verl_config)
    said = [message for message in caplog.messages if "disable_log_stats" in message]
    assert len(said) == warned
    assert all("actor_rollout_ref.rollout.disable_log_stats=False" in message for message in said)
