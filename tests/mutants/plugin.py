"""For pytest: note what each test runs, and how long it takes; or keep the tests that are named, in order."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import coverage
import pytest

_shared: dict[str, float] = {}
"""Fixture of several tests → its seconds. Each of these tests, alone, would run it and wait for it."""


def _measure_as(name: str) -> None:
    """Name what runs from now on, also in the processes that start."""
    if measuring := coverage.Coverage.current():
        os.environ["MUTANTS_CONTEXT"] = name
        measuring.switch_context(name)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[None]:
    if fixturedef.scope == "function":
        return (yield)
    began, test = time.monotonic(), os.environ.get("MUTANTS_CONTEXT", "")
    _measure_as(fixturedef.argname)
    result = yield
    _measure_as(test)
    _shared[fixturedef.argname] = time.monotonic() - began
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    began, failed = time.monotonic(), item.session.testsfailed
    waited = sum(seconds for name, seconds in _shared.items() if name in item.fixturenames)
    _measure_as(item.nodeid)
    result = yield
    _measure_as("")
    if "MUTANTS_NOTES" in os.environ and item.session.testsfailed == failed:
        with open(os.environ["MUTANTS_NOTES"], "a") as notes:
            seconds, shared = time.monotonic() - began + waited, _shared.keys() & item.fixturenames
            notes.write(json.dumps([seconds, item.nodeid, *shared]) + "\n")
    return result


def pytest_sessionfinish() -> None:
    if measuring := coverage.Coverage.current():
        measuring.save()  # before xdist kills a process that takes long to end


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if named := os.environ.get("MUTANTS_TESTS", "").splitlines():
        items[:] = sorted((x for x in items if x.nodeid in named), key=lambda item: named.index(item.nodeid))
