"""Run a thousand trajectories of each library, and count what was recorded and delivered.

.venv-agents/bin/python -m tests.agents
.venv-agents/bin/python -m tests.agents --trajectories 100 --ray --only langchain
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.agents.local_server import running_server
from tests.agents.rollouts import (
    LIBRARIES,
    MODEL_CALLS,
    KeepingReceiver,
    Library,
    Rollout,
    has_messages,
    input_tokens,
    is_model_call,
    roll_out,
)
from tests.agents.test_examples import check, check_delivered

_SECONDS = 3600.0
"""Maximum length of one library's run; a busy machine needs minutes for what takes one otherwise."""


def main() -> None:
    """Run and count each library."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trajectories", type=int, default=1000)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--only", choices=[library.instrument for library in LIBRARIES])
    options = parser.parse_args()
    print("| library | spans expected | recorded | delivered | twice | with identity |", end="")
    print(" model calls expected | with tokens | with messages | seconds |")
    print(f"|---{'|---:' * 9}|")
    all_right = True
    with running_server() as url:
        os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY="unused", LITELLM_LOCAL_MODEL_COST_MAP="True")
        for library in LIBRARIES:
            if options.only in (None, library.instrument):
                all_right &= _run(library, options.trajectories, options.ray)
    sys.exit(not all_right)


def _run(library: Library, count: int, on_ray: bool) -> bool:
    """Run a library, print its row, and return whether everything was there."""
    receiver = KeepingReceiver()
    further = ["--ray"] if on_ray else []
    try:
        with tempfile.TemporaryDirectory() as directory:
            start = time.monotonic()
            options = "--trajectories", str(count), *further
            rollout = roll_out(library, Path(directory), receiver, *options, timeout=_SECONDS)
            seconds = time.monotonic() - start
    finally:
        receiver.close()
    row = *_counts(library, rollout, count, len(receiver.repeated)), round(seconds)
    print(f"| {library.instrument} | {' | '.join(map('{:,}'.format, row))} |", flush=True)
    try:
        check(library, rollout, count)
        check_delivered(rollout)
        assert not receiver.repeated
    except AssertionError:
        traceback.print_exc()
        return False
    return True


def _counts(library: Library, rollout: Rollout, count: int, repeated: int) -> tuple[int, ...]:
    """Return the columns of a library's row, counted in what the backend received."""
    delivered = rollout.delivered.values()
    rows = {(1, index) for index in range(count)}
    identified = [s for s in delivered if (s.get("rollout.step"), s.get("rollout.sample_index")) in rows]
    calls = [span for span in delivered if is_model_call(span)]
    return (
        library.spans * count,
        len(rollout.spans),
        len(delivered),
        repeated,
        len(identified),
        MODEL_CALLS * count,
        sum(input_tokens(call) > 0 for call in calls),
        sum(has_messages(call) for call in calls),
    )


if __name__ == "__main__":
    main()
