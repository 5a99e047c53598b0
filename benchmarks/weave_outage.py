"""Measure an outage of Weave's server in which the delivering process is killed.

    python -m benchmarks.weave_outage [SECONDS]

The server answers 503 for a while. Ours: the forwarder is killed. weave's client, used as verl uses it: its
process is killed, which holds the calls. Prints as JSON how many of 2,000 spans are missing afterwards, and
how many exist twice.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.delivery import forwarders
from tests.local_weave import ENTITY, PYTHON, ROOT, LocalWeave

CLIENT = ROOT / "benchmarks" / "weave_client.py"
SPANS = 2000
_PATIENCE = 120.0
RECORD = """
import sys, otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
text = "The quick brown fox jumps over the lazy dog. " * 45

@rollout_trace_op
def operation(text): return {"text": text}

for index in range(int(sys.argv[1]) // 10):
    with rollout_trace_attr(sample_index=index, step=1, rollout_n=0):
        for _ in range(9):
            operation(text)
otel_rollout.shutdown(float(sys.argv[2]))
"""


def ours(weave: LocalWeave, seconds: float) -> dict[str, int]:
    """Measure ours; the forwarder is killed."""
    with tempfile.TemporaryDirectory() as spool:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        variables = {
            **inherited,
            **weave.environment,
            "OTEL_TRACES_EXPORTER": "weave",
            "OTEL_ROLLOUT_PROJECT": "outage-ours",
            "OTEL_ROLLOUT_SPOOL_DIR": spool,
        }
        # The first batches are stored although the answer is 503: the worst case for duplicates.
        weave.fail("calls/complete", 503, times=3, after=True)
        weave.fail("calls/complete", 503, times=1_000_000)
        command = [sys.executable, "-c", RECORD, str(SPANS), str(seconds + _PATIENCE)]
        with subprocess.Popen(command, env=variables) as job:
            time.sleep(seconds / 2)
            for process in forwarders(spool):
                os.kill(process, signal.SIGKILL)
            time.sleep(seconds / 2)
            weave.recover()
            job.wait(seconds + _PATIENCE)
    return _arrived(weave, "outage-ours")


def theirs(weave: LocalWeave, seconds: float) -> dict[str, int]:
    """Measure weave's client; its process is killed."""
    weave.fail("calls/complete", 503, times=1_000_000)
    weave.fail("call/upsert_batch", 503, times=1_000_000)
    command = [str(PYTHON), str(CLIENT), f"{ENTITY}/outage-theirs", str(SPANS)]
    variables = {**os.environ, **weave.environment}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
        assert job.stdout is not None
        job.stdout.readline()
        time.sleep(seconds / 2)
        job.kill()
    time.sleep(seconds / 2)
    weave.recover()
    time.sleep(1)
    return _arrived(weave, "outage-theirs")


def _arrived(weave: LocalWeave, project: str) -> dict[str, int]:
    times = Counter(call["id"] for call in weave.calls(project))
    return {"spans": SPANS, "lost": SPANS - len(times), "duplicates": sum(times.values()) - len(times)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weave_outage", description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=60, help="that the server answers 503")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as place, LocalWeave(Path(place), "chdb") as weave:
        found = {
            "otel-rollout": ours(weave, seconds),
            "weave client, as verl": theirs(weave, seconds),
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
