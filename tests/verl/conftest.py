"""Run verl's own classes, in this process and in jobs with Ray's actors."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import otel_rollout
from otel_rollout import settings
from otel_rollout.base.state import reset

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


def _import_verl_as_if_tracing() -> None:
    """Import verl once for all tests, with its plugin as in a process that traces."""
    os.environ["OTEL_TRACES_EXPORTER"] = "mlflow"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of verl and its dependencies cannot be mended here
        importlib.import_module("verl.experimental.agent_loop")
    for name in ("OTEL_TRACES_EXPORTER", settings.CONFIG_VARIABLE):
        os.environ.pop(name, None)
    reset()


# These tests have an environment of their own: `make verl`.
if not list(importlib.metadata.distributions(name="verl")):
    collect_ignore_glob = ["test_*.py"]
else:
    _import_verl_as_if_tracing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow warnings: those of verl and its dependencies cannot be mended here."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture
def verl_config(tmp_path: Path) -> Any:
    """Return verl's configuration for the scripted model."""
    from tests.verl.configuration import configuration

    return configuration(tmp_path / "configuration", [])


@pytest.fixture
def trace_config(tracing: None) -> Iterator[Any]:
    """Yield verl's ``RolloutTraceConfig``, reset before and after the test."""
    from verl.utils.rollout_trace import RolloutTraceConfig

    RolloutTraceConfig.reset()
    yield RolloutTraceConfig
    RolloutTraceConfig.reset()


@pytest.fixture
def delivered(tracing: None, tmp_path: Path) -> Callable[[], dict[str, list[Any]]]:
    """Return a function that ends recording and returns outputs by span name."""

    def read() -> dict[str, list[Any]]:
        report = otel_rollout.shutdown(60)
        assert not report.undelivered
        outputs = defaultdict(list)
        for line in (tmp_path / "spool-delivered.jsonl").read_text().splitlines():
            _, name, attributes = json.loads(line)
            outputs[name].append(json.loads(attributes.get("output.value", "null")))
        return outputs

    return read
