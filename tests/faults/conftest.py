"""An OTLP receiver that counts, and the variables of processes that deliver to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.target import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield a receiver that takes everything, to begin with."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def variables(receiver: Receiver, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a recording process that delivers to the receiver."""
    return {
        **os.environ,
        "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool"),
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_TEST_HASTE": "100",
    }
