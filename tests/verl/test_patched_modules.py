"""Versions of verl that lack a patched name."""

from __future__ import annotations

import logging
import types
from typing import Any

import pytest

import verl
from otel_rollout.integrations.verl import seams, tools


def _agent_loop_without(*names: str) -> Any:
    """Return verl's module ``agent_loop`` without some names."""

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


def test_missing_name_is_a_warning_and_other_seams_take_effect(caplog: pytest.LogCaptureFixture) -> None:
    """The warning has verl's version, the name and what is not traced."""
    module = _agent_loop_without("_compute_score")
    seams.patch((".trajectory", ".sample_limit"), module)
    (line,) = [r.getMessage() for r in caplog.records if r.name == "otel_rollout"]
    assert f"verl {verl.__version__} has no" in line
    assert "AgentLoopWorker._compute_score, so rewards are not traced" in line
    assert hasattr(module.AgentLoopWorker._run_agent_loop, "__wrapped__")
    assert hasattr(module.get_trajectory_info, "__wrapped__")


@pytest.mark.internal_errors
def test_failing_patch_is_logged_once_and_raises_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl would log errors of plugins at DEBUG."""
    monkeypatch.setattr(tools, "install", lambda module: module.ToolAgentLoop, raising=False)
    module = types.ModuleType("verl.experimental.agent_loop.tool_agent_loop")  # no class in it at all
    with caplog.at_level(logging.WARNING, "otel_rollout"):
        seams.patch((".tools",), module)
        seams.patch((".tools",), module)
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert f"tool_agent_loop of verl {verl.__version__}" in errors[0].getMessage()
    assert errors[0].exc_info is not None
