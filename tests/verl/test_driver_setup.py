"""Set-up in verl's driver before it starts Ray, by flags and environment."""

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
from otel_rollout.integrations.verl import trace_config
from otel_rollout.record.runs import membership

IMPORT_VERL = Path(__file__).parent / "programs" / "import_verl.py"


@pytest.fixture(autouse=True)
def _propagation_undone(fresh_process: None) -> Any:
    import otel_rollout

    yield
    otel_rollout.uninstrument()


def _flag(config: Any, backend: str | None) -> Any:
    config.actor_rollout_ref.rollout.trace.backend = backend
    return config


def test_flag_alone_configures_the_job(
    verl_config: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With trace.backend=mlflow, verl's project is every process's experiment."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    get_ppo_ray_runtime_env(_flag(verl_config, "mlflow"))
    configured = membership.decide()
    assert (list(configured.exporters), configured.project_name) == (["mlflow"], "verl-tests")
    assert configured.experiment_name == "scripted"
    assert json.loads(os.environ[settings.CONFIG_VARIABLE])["project_name"] == "verl-tests"


def test_flag_otel_selects_the_exporters_of_the_variable(
    verl_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_TRACES_EXPORTER names them."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    get_ppo_ray_runtime_env(_flag(verl_config, "otel"))
    assert list(membership.decide().exporters) == ["console"]


def test_flag_wins_over_the_variable_with_a_warning(
    verl_config: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line names both."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    get_ppo_ray_runtime_env(_flag(verl_config, "mlflow,console"))
    assert list(membership.decide().exporters) == ["mlflow", "console"]
    (line,) = [r.getMessage() for r in caplog.records if "the flag wins" in r.getMessage()]
    assert "mlflow,console" in line
    assert "OTEL_TRACES_EXPORTER=console" in line


def test_backend_that_is_not_installed_is_an_error_in_the_log(
    verl_config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Training starts without tracing, and the error names the flag."""
    get_ppo_ray_runtime_env(_flag(verl_config, "nowhere"))
    assert not membership.decide().enabled
    assert [r for r in caplog.records if "trace.backend=nowhere" in r.getMessage()]


def test_mlflow_without_tracking_uri_gets_verls_default(
    verl_config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Traces go to verl's default database on the driver's machine, with a warning."""
    get_ppo_ray_runtime_env(_flag(verl_config, "mlflow"))
    assert membership.decide().exporters["mlflow"]["tracking_uri"] == "sqlite:////tmp/mlruns.db"
    assert membership.decide().home_node
    assert [r for r in caplog.records if trace_config.DEFAULT_MLFLOW_URI in r.getMessage()]


def test_project_variable_wins_over_verls_project(verl_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl has a default project name; OTEL_ROLLOUT_PROJECT is set on purpose."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_ROLLOUT_PROJECT", "mine")
    get_ppo_ray_runtime_env(verl_config)
    assert (membership.decide().project_name, membership.decide().experiment_name) == ("mine", "scripted")


def test_without_flag_and_variable_nothing_changes(verl_config: Any) -> None:
    """verl's runtime environment and this process stay as they are."""
    made = get_ppo_ray_runtime_env(verl_config)
    assert made == get_ppo_ray_runtime_env.__wrapped__(verl_config)
    assert settings.CONFIG_VARIABLE not in os.environ


def test_plugin_variable_is_forwarded_to_workers(verl_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of other nodes need it in versions that find plugins by the variable."""
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "otel_rollout.integrations.verl")
    made = get_ppo_ray_runtime_env(verl_config)
    assert made["env_vars"]["VERL_USE_EXTERNAL_MODULES"] == "otel_rollout.integrations.verl"


@pytest.mark.parametrize("configured", [True, False])
def test_import_of_verl_patches_it_only_if_tracing_is_configured(configured: bool, tmp_path: Path) -> None:
    """Without configuration neither verl nor Ray is patched."""
    environment = {**os.environ, "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path)}
    if configured:
        environment |= {"OTEL_TRACES_EXPORTER": "mlflow", "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"}
    command = [sys.executable, "-W", "ignore", str(IMPORT_VERL)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    if configured:
        assert found["decorator"] == "otel_rollout.integrations.verl.rollout_trace"
        assert found["ray is patched"]
    else:
        assert found["decorator"] == "verl.utils.rollout_trace"
        assert not found["ray is patched"]
        assert found["integrations"] == [
            "otel_rollout.integrations",
            "otel_rollout.integrations.kit",
            "otel_rollout.integrations.kit.seams",
            "otel_rollout.integrations.verl",
            "otel_rollout.integrations.vllm",
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
def test_tracing_engine_without_statistics_is_a_warning_in_the_driver(
    verl_config: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    engine: dict[str, Any],
    disabled: bool,
    warned: bool,
) -> None:
    """vLLM's tracing with verl's disable_log_stats kills the engine.

    One warning has the remedy.
    """
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    verl_config.actor_rollout_ref.rollout.disable_log_stats = disabled
    verl_config.actor_rollout_ref.rollout.engine_kwargs = {"vllm": engine}
    get_ppo_ray_runtime_env(_flag(verl_config, "otel"))
    get_ppo_ray_runtime_env(verl_config)
    said = [message for message in caplog.messages if "disable_log_stats" in message]
    assert len(said) == warned
    assert all("actor_rollout_ref.rollout.disable_log_stats=False" in message for message in said)
