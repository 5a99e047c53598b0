"""Many schedules of kills, faults and restarts, new ones each time."""

import random

import pytest

from tests.soak import crash

RUNS = 40
RUNS_WITH_MLFLOW = 5


def seeds(count: int) -> list[int]:
    return [random.SystemRandom().randrange(10**9) for _ in range(count)]


@pytest.mark.parametrize("seed", seeds(RUNS))
def test_whatever_is_killed_and_fails_nothing_is_lost(test_exporters: None, seed: int) -> None:
    """What ended arrives, none of it needlessly twice; the account adds up; nothing of ours keeps running."""
    crash.play(seed)


@pytest.mark.parametrize("seed", seeds(RUNS_WITH_MLFLOW))
def test_mlflow_shows_each_span_once(test_exporters: None, server_uri: str, seed: int) -> None:
    """The same with a real MLflow server, of which every request may fail."""
    crash.play(seed, server_uri)
