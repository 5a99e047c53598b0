"""Each test hears of what goes wrong in it."""

import pytest

from otel_rollout.base import errors


@pytest.fixture(autouse=True)
def reports_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """An internal error is reported once per process and place; here, once per test."""
    monkeypatch.setattr(errors, "_reported", set())
