"""The hot path takes no more instructions and memory than its baseline."""

import json
import platform
import subprocess
import sys

import pytest

from benchmarks.counts import BASELINE

TOLERANCE = 0.02
"""Largest relative difference from the baseline."""
ONE_OBJECT = 64
"""Bytes of a number or a short text, which one run finds in Python's caches and another does not."""
RENEW = "if the change is intended: .venv/bin/python -m benchmarks.counts --renew"
BEFORE = json.loads(BASELINE.read_text())


@pytest.mark.skipif(
    not platform.python_version().startswith(BEFORE["python"] + "."),
    reason=f"instructions were counted with Python {BEFORE['python']}",
)
def test_traced_call_stays_within_the_baseline():
    """Instructions and memory of a call change by 2% at most; memory also by one small object.

    The call is off, sampled out or recorded.
    """
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.counts"],
        capture_output=True,
        check=True,
        text=True,
    )
    changed = [
        f"{case}: {count} {what}, {known} before"
        for case, counts in json.loads(ran.stdout)["counts"].items()
        for what, count in counts.items()
        for known in [BEFORE["counts"][case][what]]
        if abs(count - known) > max(TOLERANCE * known, ONE_OBJECT if what == "peak_bytes" else 0)
    ]
    assert not changed, "\n".join([*changed, RENEW])
