"""Many schedules of kills, faults and restarts, new ones each time."""

import random

import pytest

from tests.soak import crash

RUNS = 40


@pytest.mark.parametrize("seed", [random.SystemRandom().randrange(10**9) for _ in range(RUNS)])
def test_whatever_is_killed_and_fails_nothing_is_lost(test_exporters: None, seed: int) -> None:
    """What ended arrives, none of it needlessly twice; the account adds up; nothing of ours keeps running."""
    crash.play(seed)
