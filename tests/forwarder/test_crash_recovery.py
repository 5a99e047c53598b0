"""The randomised crash test, in short: some schedules of it, always the same. `make soak` plays many more."""

import pytest

from tests.soak import crash


@pytest.mark.parametrize("seed", [13, 30, 42])
def test_whatever_is_killed_and_fails_nothing_is_lost(test_exporters: None, seed: int) -> None:
    """What ended arrives, none of it needlessly twice; the account adds up; nothing of ours keeps running."""
    crash.play(seed)
