"""One proxy beside one program that holds trajectories open, for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.agents.local_server import running_server
from tests.black_box.support import Proxy
from tests.otlp.model_server import model_server
from tests.receiver.conftest import Run

TRAJECTORIES = 60


@pytest.fixture(scope="package")
def scripted() -> Iterator[str]:
    """Return the address of a server with a scripted model that calls tools."""
    with running_server() as address:
        yield address


@pytest.fixture(scope="package")
def proxy(tmp_path_factory: pytest.TempPathFactory, scripted: str) -> Iterator[Proxy]:
    """Run the proxy beside a program that holds trajectories open."""
    directory = tmp_path_factory.mktemp("black-box")
    run = Run(directory / "spool", TRAJECTORIES, "hold_trajectories.py")
    try:
        with model_server() as weather:
            engines = dict.fromkeys(("shop", "shop:error", "shop:cut", "shop:slow"), scripted)
            started = Proxy(run, {**engines, "local": f"{weather}/v1"}, directory)
            try:
                yield started
            finally:
                started.kill()
    finally:
        run.close()


@pytest.fixture(scope="package")
def numbers() -> Iterator[int]:
    """Return numbers of trajectories, each for one test."""
    return count()


@pytest.fixture
def trajectory(numbers: Iterator[int]) -> int:
    """Return the number of a trajectory that no other test uses."""
    return next(numbers)
