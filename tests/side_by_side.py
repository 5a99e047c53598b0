"""Say which tests `make test` leaves to `make test-all`, and which tests one of pytest's workers runs."""

from __future__ import annotations

import fcntl
import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath
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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses one of the two tiers. Without it, all tests run."""
    parser.addoption("--tier", choices=("promises", "extended"), help="what extended.toml leaves, or what it names")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a module whose tests are all of the other tier: imports take long."""
    if not (collection_path.is_relative_to(_TESTS) and config.option.tier):
        return None
    place = collection_path.relative_to(_TESTS).as_posix()
    if config.option.tier == "promises":
        return place in EXTENDED or None
    named = any(name.startswith((f"{place}/", f"{place}::")) for name in EXTENDED)
    return None if named or _is_extended(place) or place == "." else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen tier, give each its group, and let the long groups begin first."""
    if tier := config.option.tier:
        others = [item for item in items if _is_extended(_name(item)) != (tier == "extended")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    groups = {item: _group(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: "/" in groups[item])  # a module's path has one, and the others are long


def _is_extended(place: str) -> bool:
    """Return whether a folder, a module or a test is named, or is in one that is."""
    path, separator, name = place.partition("::")
    folders = [parent.as_posix() for parent in PurePosixPath(path).parents]
    return any(each in EXTENDED for each in [*folders, path, place, f"{path}{separator}{name.partition('[')[0]}"])


def _name(item: pytest.Item) -> str:
    return f"{item.path.relative_to(_TESTS).as_posix()}::{item.name}"


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
