"""Play rounds of random faults one after another, each by its seed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

Played = TypeVar("Played")


def seeds_of(seed: int | None, runs: int) -> Sequence[int]:
    """Return the seed that is asked for, or so many new ones."""
    return [random.SystemRandom().randrange(10**9) for _ in range(runs)] if seed is None else [seed]


def in_turn(seeds: Sequence[int], play: Callable[[int], Played]) -> tuple[list[Played], list[int]]:
    """Play a round of each seed; return what the right ones gave, and the seeds of those that went wrong."""
    played, failed = [], []
    for seed in seeds:
        began = time.monotonic()
        try:
            played.append(play(seed))
        except AssertionError as error:
            failed.append(seed)
            print(error, flush=True)
        print(f"seed {seed}: {time.monotonic() - began:.1f} s", flush=True)
    return played, failed
