"""The properties of tests/fuzz, tried a hundred times as often as in every run of the tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent.parent / "fuzz"


@pytest.mark.parametrize("properties", sorted(FUZZ.glob("test_*.py")), ids=lambda path: path.stem)
def test_the_properties_hold_for_many_more_examples(properties):
    """New ones each time; a failure says which example it was, and how to come back to it."""
    environ = {**os.environ, "HYPOTHESIS_PROFILE": "soak"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(properties)]
    ran = subprocess.run(command, env=environ, cwd=FUZZ.parent.parent, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
