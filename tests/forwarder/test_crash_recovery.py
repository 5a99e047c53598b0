"""A few fixed schedules of the randomized crash test; `make soak` plays many more."""

import pytest

from tests.soak import crash


@pytest.mark.parametrize("seed", [13, 30, 42])
def test_whatever_is_killed_and_fails_nothing_is_lost(test_exporters: None, seed: int) -> None:
    """Spans that ended arrive, none twice without need, and no process of ours keeps running."""
    crash.play(seed)
