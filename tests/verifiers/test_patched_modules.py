"""Versions of verifiers that lack a patched name, and importing the integration twice."""

from __future__ import annotations

import importlib
import types

import pytest
import verifiers
from verifiers.v1.rollout import Rollout

from otel_rollout.integrations.verifiers import CONFIGURED, seams

LOSSES = {
    "verifiers.v1.utils.decorators": ["invoke"],
    "verifiers.v1.judge": ["Judge.complete"],
    "verifiers.v1.trace": ["Trace.record_reward", "Trace.record_metric"],
    "verifiers.v1.interception.server": ["InterceptionServer.record_call"],
    "verifiers.v1.rollout": ["Rollout.open", "Rollout.step", "Rollout.close", "Rollout.abort"],
    "verifiers.v1.env": ["Env.slots", "Env.run_slot"],
    "verifiers.v1.cli.eval.runner": ["run_eval"],
    "verifiers.v1.serve.client": ["EnvClient._validate_episode"],
}
"""Module → names that a version may lack, if the module has no class that tells it from another."""


@pytest.mark.parametrize("name", LOSSES)
def test_missing_name_is_one_warning_that_names_it(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The warning has verifiers' version, the name and what is not traced."""
    seams.patch(CONFIGURED[name], types.ModuleType(name))
    lines = [record.getMessage() for record in caplog.records if record.name == "otel_rollout"]
    for line, missing in zip(lines, LOSSES[name], strict=True):
        assert line.startswith(
            f"otel-rollout: verifiers {verifiers.__version__} has no {name}.{missing}, so "
        )
        assert line.endswith("; the rest is traced.")


def test_one_missing_method_leaves_the_others_traced(caplog: pytest.LogCaptureFixture) -> None:
    """A version without ``Rollout.step`` still has traced rollouts."""

    class Moved:
        async def open(self) -> bool:
            return True

        async def close(self) -> None: ...

        async def abort(self) -> None: ...

    module = types.ModuleType("verifiers.v1.rollout")
    module.Rollout = Moved  # type: ignore[attr-defined]
    seams.patch(CONFIGURED["verifiers.v1.rollout"], module)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "otel_rollout"]
    assert "verifiers.v1.rollout.Rollout.step, so in-process agents" in line
    assert all(hasattr(vars(Moved)[name], "__wrapped__") for name in ("open", "close", "abort"))


def test_setting_up_twice_patches_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable has imported the integration; importing it by hand has no further effect."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    importlib.import_module("otel_rollout.integrations.verifiers")
    for name in ("open", "step", "close", "abort"):
        assert not hasattr(vars(Rollout)[name].__wrapped__, "__wrapped__")
