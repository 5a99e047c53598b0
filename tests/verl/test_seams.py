"""A version of verl that lacks what we add to."""

from __future__ import annotations

import logging
import types
from typing import Any

import pytest

import verl
from otel_rollout.integrations.verl import seams


def _agent_loop_without(*names: str) -> Any:
    """A module as ``verl.experimental.agent_loop.agent_loop`` is to us, without some of its names."""

    class AgentLoopWorker:
        async def _run_agent_loop(self, sampling_params: Any, trajectory: Any, **kwargs: Any) -> str:
            return "ran"

        async def _compute_score(self, outputs: Any) -> None: ...

    async def get_trajectory_info(*args: Any) -> list[Any]:
        return []

    class AgentLoopManager:
        def generate_sequences(self, prompts: Any) -> None: ...

    for name in names:
        delattr(AgentLoopWorker, name)
    module: Any = types.ModuleType("verl.experimental.agent_loop.agent_loop")
    module.AgentLoopWorker, module.get_trajectory_info = AgentLoopWorker, get_trajectory_info
    module.AgentLoopManager = AgentLoopManager
    return module


def test_a_missing_name_is_said_and_the_rest_is_traced(caplog: pytest.LogCaptureFixture) -> None:
    """One warning names verl's version, the seam and what it costs; the other seams are in force."""
    module = _agent_loop_without("_compute_score")
    seams._add(module, "trajectory")
    (line,) = [r.getMessage() for r in caplog.records if r.name == "otel_rollout"]
    assert f"verl {verl.__version__} has no" in line
    assert "AgentLoopWorker._compute_score, so rewards are not traced" in line
    assert hasattr(module.AgentLoopWorker._run_agent_loop, "__wrapped__")
    assert hasattr(module.get_trajectory_info, "__wrapped__")


@pytest.mark.internal_errors
def test_what_fails_in_adding_is_said_and_verl_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl hides errors of plugins at DEBUG; ours is in the log once, with its reason, and ends there."""
    module = types.ModuleType("verl.experimental.agent_loop.tool_agent_loop")  # no class in it at all
    with caplog.at_level(logging.WARNING, "otel_rollout"):
        seams._add(module, "tools")
        seams._add(module, "tools")
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert f"tool_agent_loop of verl {verl.__version__}" in errors[0].getMessage()
    assert errors[0].exc_info is not None
