"""A real Collector: built or found by ``make collector``, and started per test.

Its absence fails tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.collector.support import CONFIGURATIONS, Collector, running_collectors, training_environment
from tests.collector.tailing import get_tailing


@pytest.fixture(scope="session")
def binary() -> Path:
    """The Collector's program."""
    ran = subprocess.run(
        [sys.executable, str(CONFIGURATIONS / "get_collector.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return Path(ran.stdout.strip())


@pytest.fixture(scope="session")
def tailing_binary() -> Path:
    """A Collector that has `otlp_json_file`, for agent-tail.yaml."""
    return get_tailing()


@pytest.fixture
def collector(binary: Path, tmp_path: Path) -> Iterator[Callable[..., Collector]]:
    """Return a function that starts Collectors.

    They end with the test, without warnings.
    """
    with running_collectors(binary, tmp_path) as start:
        yield start


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a training script that delivers over OTLP.

    Its endpoint is to be added.
    """
    return training_environment(tmp_path / "spool")
