"""Filters that a person types become SQL conditions."""

from __future__ import annotations

import pytest

from otel_rollout.table import filters
from otel_rollout.table.select import QueryError


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("3", "step = 3"),
        ("1-3", "step BETWEEN 1 AND 3"),
        ("1..3", "step BETWEEN 1 AND 3"),
        ("-2--1", "step BETWEEN -2 AND -1"),
        ("<0.1", "step < 0.1"),
        (">= 1e-3", "step >= 1e-3"),
        ("==2", "step = 2"),
        ("!=2", "step <> 2"),
        ("1, 3-4", "(step = 1 OR step BETWEEN 3 AND 4)"),
    ],
)
def test_numbers_are_read(text: str, condition: str) -> None:
    """Numbers, ranges and comparisons, several with commas."""
    assert filters.numbers("step", text, "--step") == condition


@pytest.mark.parametrize("text", ["", "a", "1;2", "<", "1 OR 1=1", "1)", "0x1", "1-", "<'a'", "nan"])
def test_other_text_is_refused(text: str) -> None:
    """The sentence names the option and the forms."""
    with pytest.raises(QueryError, match=r"^--step .* cannot be read: write a number \(3\), a range"):
        filters.numbers("step", text, "--step")


def test_values_become_literals() -> None:
    """Text is quoted, whatever it contains."""
    assert filters.equals("name", "it's") == "name = 'it''s'"
    assert filters.equals("name", ["a", None]) == "(name = 'a' OR name IS NULL)"
    assert filters.equals("validate", False) == "NOT validate"
    assert filters.equals("step", range(2)) == "step IN (0, 1)"
    assert filters.equals("name", ["a'", "b"]) == "name IN ('a''', 'b')"
    assert filters.equals("step", []) == "(false)"


def test_order_names_a_column() -> None:
    """A dash before the name is descending; nulls come last."""
    assert filters.order("-reward", ["reward"]) == "reward DESC NULLS LAST"
    with pytest.raises(QueryError, match="Did you mean 'reward'"):
        filters.order("rewrd", ["reward"])
