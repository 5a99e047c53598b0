"""Run a thousand trajectories of each library, and print what was recorded and delivered.

.venv-agents/bin/python -m tests.agents
.venv-agents/bin/python -m tests.agents --trajectories 100 --ray --only langchain
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from tests.agents.local_server import running_server
from tests.agents.rollouts import LIBRARIES, KeepingReceiver, Library, roll_out
from tests.agents.test_examples import check, check_delivered


def main() -> None:
    """Check each library."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trajectories", type=int, default=1000)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--only", choices=[library.instrument for library in LIBRARIES])
    options = parser.parse_args()
    print("| library | trajectories | spans recorded | delivered | twice | seconds |")
    print("|---|---:|---:|---:|---:|---:|")
    with running_server() as url:
        os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY="unused", LITELLM_LOCAL_MODEL_COST_MAP="True")
        for library in LIBRARIES:
            if options.only in (None, library.instrument):
                print(_row(library, options.trajectories, options.ray), flush=True)


def _row(library: Library, count: int, on_ray: bool) -> str:
    receiver = KeepingReceiver()
    further = ["--ray"] if on_ray else []
    try:
        with tempfile.TemporaryDirectory() as directory:
            start = time.monotonic()
            rollout = roll_out(library, Path(directory), receiver, "--trajectories", str(count), *further)
            seconds = time.monotonic() - start
            check(rollout, count)
            check_delivered(rollout)
    finally:
        receiver.close()
    columns = (count, len(rollout.spans), len(rollout.delivered), len(receiver.repeated), round(seconds))
    return f"| {library.instrument} | {' | '.join(map(str, columns))} |"


if __name__ == "__main__":
    main()
