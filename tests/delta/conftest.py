"""Fixtures: the environment of a process that records for a table."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waits import scaled, variable


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The directory of the table, which does not exist yet."""
    return tmp_path / "table"


@pytest.fixture
def variables(tmp_path: Path, table: Path) -> dict[str, str]:
    """Return the environment of a process that records for the table, in batches of seven spans."""
    return {
        **os.environ,
        "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool"),
        "OTEL_ROLLOUT_KEEP": "true",
        "OTEL_TRACES_EXPORTER": "delta",
        "OTEL_ROLLOUT_DELTA_URI": str(table),
        "OTEL_ROLLOUT_DELTA_COMPACT": "false",  # a process would wait for a free core after the test
        **variable(scaled(0.01)),
        "OTEL_TEST_BATCH": "7",
    }


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """Yield a directory that an unprivileged user can reach and write to."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)
