"""Run rollouts of verifiers: an environment of the tests, an agent's program, a scripted model."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_rollout import settings
from otel_rollout.base.state import reset
from tests.verifiers.scripted_model import ScriptedModel, serving

ENVIRONMENTS = Path(__file__).with_name("environments")


def _import_verifiers_as_if_tracing() -> None:
    """Import verifiers once for all tests, with its integration as in a process that traces."""
    os.environ["OTEL_TRACES_EXPORTER"] = "otlp"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of verifiers' dependencies cannot be mended here
        importlib.import_module("otel_rollout.integrations.verifiers")
        importlib.import_module("verifiers.v1")
        importlib.import_module("verifiers.v1.serve.server")
        importlib.import_module("verifiers.v1.serve.client")
        importlib.import_module("verifiers.v1.cli.eval.runner")
    for name in ("OTEL_TRACES_EXPORTER", settings.CONFIG_VARIABLE):
        os.environ.pop(name, None)
    reset()


# These tests have an environment of their own: `make verifiers`.
if not list(importlib.metadata.distributions(name="verifiers")):
    collect_ignore_glob = ["test_*.py"]
else:
    sys.path.insert(0, str(ENVIRONMENTS))
    _import_verifiers_as_if_tracing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow warnings: those of verifiers and its dependencies cannot be mended here."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    """Serve a scripted model."""
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what verifiers writes to the home directory below the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def environment() -> Callable[..., Any]:
    """Return a function that loads the environment of the tests, with tasks of the given prompts."""

    def load(*prompts: str, **agent: Any) -> Any:
        from verifiers.v1.envs.single_agent import SingleAgentEnv, SingleAgentEnvConfig

        seat = {"runtime": {"type": "subprocess"}, **agent}
        taskset = {"id": "sums-v1", "prompts": "|".join(prompts)}
        return SingleAgentEnv(SingleAgentEnvConfig.model_validate({"taskset": taskset, "agent": seat}))

    return load
