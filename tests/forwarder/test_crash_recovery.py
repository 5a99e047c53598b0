"""Run a few fixed schedules of the randomized crash test; `make soak` runs more."""

import pytest

from tests.soak import crash


@pytest.mark.parametrize("seed", [13, 30, 42])
def test_whatever_is_killed_and_fails_nothing_is_lost(test_exporters: None, seed: int) -> None:
    """Ended spans arrive, duplicates only where allowed, and all processes end."""
    crash.play(seed)
