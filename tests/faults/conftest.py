"""Fixtures: a counting OTLP receiver, its senders' variables, a public directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.target import Receiver, receiving
from tests.waiting import wait_for
from tests.waits import scaled, variable


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield a receiver that at first accepts everything."""
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
        **variable(scaled(0.01)),
    }


@pytest.fixture
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a directory that an unprivileged user can reach and write to."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    yield path

    def is_removed() -> bool:  # a forwarder may be making a file there
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()

    wait_for(is_removed, what="removal")
