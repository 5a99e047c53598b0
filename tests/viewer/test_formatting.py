"""Numbers are formatted in one way, for the terminal and the page."""

from __future__ import annotations

import pytest

from otel_rollout.look.conversation import formatting


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0%"),
        (0.0004, "<0.1%"),
        (0.0005, "0.1%"),
        (0.018, "1.8%"),
        (0.0995, "10%"),
        (0.5, "50%"),
        (0.99, "99%"),
        (0.999, "99.9%"),
        (0.9996, ">99.9%"),
        (1, "100%"),
    ],
)
def test_only_nothing_is_0_percent_and_only_all_is_100(share: float, text: str) -> None:
    """A failure in thousands, and a success in thousands, stay visible."""
    assert formatting.percent(share) == text
