"""Fixtures: a real Weave server, and exporters to it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from otel_rollout_weave import WeaveSpanExporter
from tests.local_weave import LocalWeave
from tests.sdk_spans import ROLLOUT_RUN, Rollouts


@pytest.fixture
def weave(local_weave: LocalWeave) -> Iterator[LocalWeave]:
    """The server, without faults before and after a test."""
    local_weave.recover()
    yield local_weave
    local_weave.recover()


@pytest.fixture
def environment(weave: LocalWeave, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Set the variables of a W&B user of the server."""
    for name, value in weave.environment.items():
        monkeypatch.setenv(name, value)
    return weave.environment


@pytest.fixture
def project() -> str:
    """A project for one test."""
    return f"project-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def rollouts(project: str) -> Rollouts:
    """A builder of trajectories of the test's project."""
    return Rollouts(project, {"rollout.run.id": ROLLOUT_RUN})


@pytest.fixture
def new_exporter(environment: dict[str, str]) -> Iterator[Callable[..., WeaveSpanExporter]]:
    """Make exporters that are shut down when the test ends."""
    made: list[WeaveSpanExporter] = []

    def make(**arguments: Any) -> WeaveSpanExporter:
        made.append(WeaveSpanExporter(**arguments))
        return made[-1]

    yield make
    for exporter in made:
        exporter.shutdown()


@pytest.fixture
def exporter(new_exporter: Callable[..., WeaveSpanExporter]) -> WeaveSpanExporter:
    """An exporter that the environment configures."""
    return new_exporter()
