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
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_TESTS: Final = Path(__file__).parent
EXTENDED: Final[dict[str, str]] = {
    place: why
    for section in tomllib.loads((_TESTS / "extended.toml").read_text()).values()
    for place, why in section.items()
}
"""Folder, module or test that `make test` leaves → why."""
_GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Ray": (
        "demo/test_table",
        "doctor/test_cluster",
        "endings/",
        "mlflow/test_mlflow_end",
        "propagation/test_ray_",
        "receiver/test_ray",
    ),
    "Weave's server": (
        "weave/",
        "conformance/",
        "faults/test_targets",
        "faults/test_forwarder",
        "forwarder/test_token",
    ),
}
"""Group → modules that one worker runs. Two of Ray's clusters at once are too much for two cores, and tests
make Weave's server fail."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses one of the two tiers. Without it, all tests run."""
    parser.addoption(
        "--tier", choices=("promises", "extended"), help="what extended.toml leaves, or what it names"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a module whose tests are all of the other tier: imports take long."""
    if not (collection_path.is_relative_to(_TESTS) and config.option.tier):
        return None
    place = collection_path.relative_to(_TESTS).as_posix()
    if config.option.tier == "promises":
        return place in EXTENDED or None
    named = any(name.startswith((f"{place}/", f"{place}::")) for name in EXTENDED)
    return None if named or _is_extended(place) or place == "." else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen tier, and let the long groups begin first."""
    if tier := config.option.tier:
        chosen: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            chosen[_is_extended(_place(item.nodeid)) == (tier == "extended")].append(item)
        config.hook.pytest_deselected(items=chosen[False])
        items[:] = chosen[True]
    items.sort(key=lambda item: _group(item.nodeid) not in _GROUPS)


def _is_extended(place: str) -> bool:
    """Return whether a folder, a module or a test is named, or is in one that is."""
    path, separator, name = place.partition("::")
    folders = [parent.as_posix() for parent in PurePosixPath(path).parents]
    return any(
        each in EXTENDED for each in [*folders, path, place, f"{path}{separator}{name.partition('[')[0]}"]
    )


def _place(nodeid: str) -> str:
    """Return a test's name as extended.toml has it."""
    return nodeid.removeprefix("tests/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Give all tests of a group, or of a module, to one worker."""
    return _ByGroup(config, log)


class _ByGroup(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def _group(nodeid: str) -> str:
    """Return the name of a test's group, which is its module for most."""
    place = _place(nodeid)
    module = place.partition("::")[0]
    return next((group for group, places in _GROUPS.items() if place.startswith(places)), module)


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
