"""Say which tests `make test` leaves to `make test-all`, and which tests one of pytest's workers runs."""

from __future__ import annotations

import fcntl
import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest

_TESTS: Final = Path(__file__).parent
EXTENDED: Final[dict[str, str]] = {
    place: why
    for section in tomllib.loads((_TESTS / "extended.toml").read_text()).values()
    for place, why in section.items()
}
"""Folder, module or test that `make test` leaves → why."""
_ALONE: Final = {"local_weave": "Weave's server"}
"""Fixture → group of the tests with it: they make its server fail."""
_ON_RAY: Final = (
    "demo/",
    "doctor/test_cluster",
    "endings/",
    "propagation/test_ray_",
    "receiver/test_ray",
    "vllm/",
)
"""Modules that start Ray: two clusters at once are too much for two cores."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its group, and let the long groups begin first."""
    groups = {item: _group(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
        if any(place in EXTENDED for place in places(item)):
            item.add_marker(pytest.mark.extended)
    items.sort(key=lambda item: "/" in groups[item])  # a module's path has one, and the others are long


def places(item: pytest.Item) -> Iterator[str]:
    """Yield the names that extended.toml may have for a test: of its folders, its module, and its own."""
    path = item.path.relative_to(_TESTS)
    yield from (parent.as_posix() for parent in path.parents)
    yield path.as_posix()
    function = item.name.partition("[")[0]
    yield f"{path.as_posix()}::{function}"
    yield f"{path.as_posix()}::{item.name}"


def _group(item: pytest.Item) -> str:
    path = item.path.relative_to(_TESTS).as_posix()
    if path.startswith(_ON_RAY):
        return "Ray"
    used = getattr(item, "fixturenames", ())
    return next((group for fixture, group in _ALONE.items() if fixture in used), path)


@contextmanager
def shared(
    factory: pytest.TempPathFactory, name: str, start: Callable[[Path], AbstractContextManager[str]]
) -> Iterator[str]:
    """Start a server once for all of pytest's workers, and yield its address.

    The first worker that asks calls ``start(directory)``. It stops the server when no worker uses it.
    """
    base = factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    place.mkdir(exist_ok=True)
    told, started = place / "told", None
    with (place / "door").open("w") as door, (place / "users").open("w") as users:
        fcntl.flock(door, fcntl.LOCK_EX)
        if not told.exists():
            started = start(place)
            told.write_text(started.__enter__())
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield told.read_text()
        finally:
            if started is not None:
                fcntl.flock(door, fcntl.LOCK_EX)
                fcntl.flock(users, fcntl.LOCK_EX)  # once nobody else uses it
                told.unlink()
                started.__exit__(None, None, None)
