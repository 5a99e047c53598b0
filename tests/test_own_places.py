"""Tests see nothing of the folder, the home and the shell from which they are run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLACES = "import os, tempfile; print(os.getcwd(), os.path.expanduser('~'), tempfile.gettempdir())"


@pytest.fixture(scope="module")
def of_the_module() -> list[str]:
    """Return what a fixture of a module sees, as a test does."""
    return [*seen(), *(name for name in os.environ if name.startswith("OTEL_"))]


def seen() -> list[str]:
    """Return working, home and temporary directory of a child process."""
    return subprocess.run(
        [sys.executable, "-c", PLACES], capture_output=True, text=True, check=True
    ).stdout.split()


def test_variable_that_a_test_leaves_is_gone_for_the_next_module() -> None:
    """A program in this process tells its children so; the fixture of the next tests sees nothing of it."""
    os.environ["OTEL_ROLLOUT_LEFT"] = "by a test"


@pytest.mark.parametrize("test", ["first", "second"])
def test_each_test_has_empty_directories_of_its_own(test: str, of_the_module: list[str]) -> None:
    """Working, home and temporary directory are this test's alone, in child processes too."""
    places = seen()
    assert places == [str(Path.cwd()), str(Path.home()), tempfile.gettempdir()]
    assert [os.listdir(place) for place in places] == [[], [], []]
    assert len({*places, *of_the_module}) == 6
    for place in {*places, *of_the_module}:
        assert ROOT not in Path(place).parents
        (Path(place) / "left").touch()


def test_child_process_finds_the_programs_of_tests() -> None:
    """`python -m tests.…` works in whatever directory a test is."""
    subprocess.run([sys.executable, "-c", "import tests.programs, benchmarks"], check=True)
