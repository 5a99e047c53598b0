"""The hot path stays as short as it is, by counts that no load of the machine changes."""

import json
import platform
import subprocess
import sys

import pytest

from benchmarks.counts import BASELINE

TOLERANCE = 0.02
RENEW = "if that is meant: .venv/bin/python -m benchmarks.counts --renew"
BEFORE = json.loads(BASELINE.read_text())


@pytest.mark.skipif(
    not platform.python_version().startswith(BEFORE["python"] + "."),
    reason=f"instructions were counted with Python {BEFORE['python']}",
)
def test_a_traced_call_takes_no_more_than_it_did():
    """Off, left out or recorded, a call takes the instructions and the memory it took before, within 2 %."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.counts"],
        capture_output=True,
        check=True,
        cwd=BASELINE.parents[2],
        text=True,
    )
    changed = [
        f"{case}: {count} {what}, {known} before"
        for case, counts in json.loads(ran.stdout)["counts"].items()
        for what, count in counts.items()
        for known in [BEFORE["counts"][case][what]]
        if abs(count - known) > TOLERANCE * known
    ]
    assert not changed, "\n".join([*changed, RENEW])
