"""The randomised crash test: kills, faults and restarts.

Then nothing is lost and all adds up.

python -m tests.soak.crash --seed N      play one schedule, and show it
python -m tests.soak.crash --runs 300    as many as that, each with a seed of its own
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.exporters import install
from tests.mlflow_server import free_port, running_server
from tests.soak.invariant import violations
from tests.soak.rounds import in_turn, seeds_of
from tests.soak.run import Run, can_mount
from tests.soak.schedule import Schedule


def play(seed: int, mlflow: str | None = None) -> Counter[str]:
    """Play the schedule of a seed.

    ``mlflow`` is the address of a server that is its first target.

    Returns:
        What there was of it.

    Raises:
        AssertionError: saying what is wrong, how to have it again, and where everything lies.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"crash-{seed}-"))
    schedule = Schedule.of(seed)
    if schedule.disk_megabytes and not can_mount(directory):
        schedule = dataclasses.replace(schedule, disk_megabytes=None)
    try:
        with (run := Run(schedule, directory, mlflow)).played():
            wrong = violations(run)
            assert not wrong, "\n".join(wrong)
            played = run.counts()
    except Exception as error:
        raise AssertionError(
            f"{error}\nAgain: python -m tests.soak.crash --seed {seed}{' --mlflow' if mlflow else ''}; "
            f"files: {directory}\n{schedule}"
        ) from error
    shutil.rmtree(directory)
    return played


def main() -> None:
    """Play one schedule or many; exit with 1 if any went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.crash", description=__doc__)
    parser.add_argument("--seed", type=int, help="play the schedule of this seed")
    parser.add_argument("--runs", type=int, default=1, help="or of so many new ones")
    parser.add_argument("--mlflow", action="store_true", help="deliver to a real MLflow server")
    options = parser.parse_args()
    seeds = seeds_of(options.seed, options.runs)
    if options.seed is not None:
        print(Schedule.of(options.seed))
    with tempfile.TemporaryDirectory(prefix="crash-all-") as site, ExitStack() as stack:
        os.environ["PYTHONPATH"] = install(Path(site))
        mlflow = f"http://127.0.0.1:{free_port()}" if options.mlflow else None
        if mlflow:
            stack.enter_context(running_server(mlflow, Path(site)))
        played, failed = in_turn(seeds, partial(play, mlflow=mlflow))
    print(f"{len(seeds)} runs, failed: {failed or 'none'}; {dict(sum(played, Counter[str]()))}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
