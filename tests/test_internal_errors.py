"""The fixture ``no_internal_errors`` fails a test that logs an internal error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
from otel_rollout.base.errors import internal_errors

def provoke():
    with internal_errors("testing"):
        raise ValueError("injected")

def test_unmarked():
    provoke()

@pytest.fixture
def provoked():
    provoke()

def test_setup(provoked):
    pass

@pytest.mark.internal_errors
def test_marked():
    provoke()

def test_without():
    pass
"""


def test_internal_error_fails_the_test_in_which_it_is_logged(tmp_path):
    """An error in a fixture counts too; only tests with the mark may log one."""
    (tmp_path / "test_provoked.py").write_text(TESTS)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-rA", "--rootdir", tmp_path, tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    outcomes = {line.partition(" - ")[0] for line in run.stdout.splitlines() if "test_provoked.py::" in line}
    assert {
        "ERROR test_provoked.py::test_unmarked",
        "ERROR test_provoked.py::test_setup",
        "PASSED test_provoked.py::test_marked",
        "PASSED test_provoked.py::test_without",
    } <= outcomes, run.stdout
    assert run.stdout.count("internal error while testing; your code") >= 2
    assert "2 errors" in run.stdout
