"""Short waiting times for tests, in this process and in the processes that it starts.

``tests/conftest.py`` sets them for all tests. ``_OTEL_ROLLOUT_WAITS={} pytest`` keeps the usual ones.
"""

from __future__ import annotations

import dataclasses
import os

import orjson
import pytest

from otel_rollout.base.waits import WAITS_VARIABLE, Waits, waits

_SHORTEST = 0.02
"""Seconds of the shortest pause: shorter ones would take the processor from what is waited for."""


def variable(times: Waits) -> dict[str, str]:
    """Return the variable that gives waiting times to a process."""
    return {WAITS_VARIABLE: orjson.dumps(dataclasses.asdict(times)).decode()}


def scaled(factor: float) -> Waits:
    """Return waiting times with shorter pauses and the same limits."""
    usual = Waits()
    pauses = {
        field.name: getattr(usual, field.name) for field in dataclasses.fields(usual) if field.type == "Pause"
    }
    return dataclasses.replace(
        usual, **{name: max(min(s, _SHORTEST), s * factor) for name, s in pauses.items()}
    )


def changed(**seconds: float) -> dict[str, str]:
    """Return the variable for a process with other waiting times than this one's."""
    return variable(dataclasses.replace(waits(), **seconds))


def set_waits(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """Change some waiting times until the test's end, here and in processes that start later."""
    monkeypatch.setenv(WAITS_VARIABLE, changed(**seconds)[WAITS_VARIABLE])


def set_short_waits() -> None:
    """Shorten the pauses, unless the caller of pytest has set others."""
    os.environ |= {**variable(scaled(0.1)), **os.environ}
