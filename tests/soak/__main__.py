"""Rounds of all that takes long; exits with 1 if anything in any of them failed.

python -m tests.soak [--rounds 10]

Side by side in each round: an outage of ten minutes, random schedules of kills and faults, the same with an
MLflow server, kills around tables, which end with `table verify`, and the properties of tests/fuzz with many
more examples than in every run of the tests.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

CRASHES = 60
CRASHES_WITH_MLFLOW = 8
TABLES = 10
_MANY = ("--hypothesis-profile=nightly",)


@dataclass(frozen=True)
class Part:
    """One of the commands of a round, ``python -m`` before each."""

    name: str
    command: tuple[str, ...]

    def play(self) -> Outcome:
        """Run it to its end."""
        began = time.monotonic()
        ran = subprocess.run(
            [sys.executable, "-m", *self.command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return Outcome(self, ran.returncode == 0, time.monotonic() - began, ran.stdout)


@dataclass(frozen=True)
class Outcome:
    """What came of a part."""

    part: Part
    good: bool
    seconds: float
    said: str

    def __str__(self) -> str:
        verdict = "passed" if self.good else f"FAILED (python -m {' '.join(self.part.command)})"
        result = (self.said.strip() or "nothing").splitlines()[-1]
        return f"{self.part.name} {verdict} in {self.seconds / 60:.1f} min: {result}"


def parts() -> list[Part]:
    """Those of a new round; seeds that are not chosen here are in what a part says."""
    seed = random.SystemRandom().randrange(10**9)
    return [
        Part("outage", ("tests.soak.outage",)),
        Part("crashes", ("tests.soak.crash", "--runs", f"{CRASHES}")),
        Part("crashes with MLflow", ("tests.soak.crash", "--mlflow", "--runs", f"{CRASHES_WITH_MLFLOW}")),
        Part("tables", ("tests.soak.table", "--runs", f"{TABLES}")),
        Part("fuzz", ("pytest", "-q", "--color=no", *_MANY, f"--hypothesis-seed={seed}", "tests/fuzz")),
    ]


def play_round() -> Iterator[Outcome]:
    """Everything at once, each outcome when it is there."""
    todo = parts()
    with ThreadPoolExecutor(len(todo)) as pool:
        for done in as_completed([pool.submit(part.play) for part in todo]):
            yield done.result()


def main() -> None:
    """Play the rounds."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    green = 0
    for number in range(1, rounds + 1):
        began, good = time.monotonic(), True
        for outcome in play_round():
            good &= outcome.good
            print(f"round {number}: {outcome}", flush=True)
            if not outcome.good:
                print(outcome.said, flush=True)
        green += good
        minutes = (time.monotonic() - began) / 60
        print(f"round {number} {'passed' if good else 'FAILED'} in {minutes:.1f} minutes", flush=True)
    print(f"{green} of {rounds} rounds passed")
    sys.exit(green < rounds)


if __name__ == "__main__":
    main()
