"""A real Collector: built or found by ``make collector``, and started per test. Its absence fails tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.collector.support import CONFIGURATIONS, Collector
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
    """A function that starts Collectors, which end with the test and have nothing to warn of."""
    made: list[Collector] = []

    def start(*configurations: str | Path, program: Path = binary, **variables: str) -> Collector:
        place = tmp_path / f"collector-{len(made)}"
        made.append(Collector(program, place, ("base.yaml", *configurations), **variables))
        return made[-1].start()

    yield start
    for one in made:
        one.stop()
    for one in made:
        assert "deprecated" not in one.log.read_text().lower()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a training script that delivers over OTLP; its endpoint is to be added."""
    return {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
        "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool"),
        "OTEL_ROLLOUT_PROJECT": "collector-tests",
        "OTEL_ROLLOUT_EXPERIMENT": "grpo",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a FutureWarning of Ray's
    }
