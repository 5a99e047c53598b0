"""What `make test` leaves to `make test-all`."""

from __future__ import annotations

from pathlib import Path

from tests.side_by_side import EXTENDED

TESTS = Path(__file__).parent


def exists(place: str) -> bool:
    """Return whether there is a folder, a module or a test."""
    path, _, name = place.partition("::")
    function = f"def {name.partition('[')[0]}("
    return (TESTS / path).exists() and (not name or function in (TESTS / path).read_text())


def test_what_is_left_exists_and_has_a_reason() -> None:
    """The line of a test that was renamed goes with its name."""
    assert [place for place in EXTENDED if not exists(place)] == []
    assert all(EXTENDED.values())
