"""Fixtures of the propagation tests."""

import pytest

from otel_rollout.base import errors


@pytest.fixture(autouse=True)
def reports_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log each internal error once per test instead of once per process."""
    monkeypatch.setattr(errors, "_reported", set())
