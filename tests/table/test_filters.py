"""Filters that a person types become SQL conditions."""

from __future__ import annotations

import math
from datetime import datetime

import numpy
import pytest

from otel_rollout.table import filters
from otel_rollout.table.select import QueryError


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("3", "step = 3"),
        ("1-3", "step BETWEEN 1 AND 3"),
        ("1–3", "step BETWEEN 1 AND 3"),  # as sentences have it
        ("1..3", "step BETWEEN 1 AND 3"),
        ("-2--1", "step BETWEEN -2 AND -1"),
        ("<0.1", "step < 0.1"),
        (">= 1e-3", "step >= 1e-3"),
        ("==2", "step = 2"),
        ("!=2", "step <> 2"),
        (".5", "step = 0.5"),
        ("+1", "step = 1"),
        (">-.5", "step > -0.5"),
        ("1, 3-4", "(step = 1 OR step BETWEEN 3 AND 4)"),
    ],
)
def test_numbers_are_read(text: str, condition: str) -> None:
    """Numbers, ranges and comparisons, several with commas."""
    assert filters.numbers("step", text, "--step") == condition


@pytest.mark.parametrize(
    "text", ["", "a", "1;2", "<", "1 OR 1=1", "1)", "0x1", "1-", "<'a'", "nan", "１", "."]
)
def test_other_text_is_refused(text: str) -> None:
    """The sentence names the option and the forms."""
    with pytest.raises(QueryError, match=r"^--step .* cannot be read: write a number \(3\), a range"):
        filters.numbers("step", text, "--step")


def test_range_that_ends_before_it_begins_is_refused() -> None:
    """Nothing could match it."""
    with pytest.raises(QueryError, match=r"^--step '3-1' ends before it begins"):
        filters.numbers("step", "3-1", "--step")


@pytest.mark.parametrize(
    ("type_", "value", "condition"),
    [
        ("Int64", 1, "c = 1"),
        ("Int64", "1-3", "c BETWEEN 1 AND 3"),
        ("Int64", [1, 3], "c IN (1, 3)"),
        ("Int64", ["<2", 5], "(c < 2 OR c = 5)"),
        ("Int64", numpy.int64(7), "c = 7"),
        ("Float64", numpy.float64(0.1), "c = 0.1"),
        ("Int64", numpy.array([1, 3]), "c IN (1, 3)"),
        ("Utf8", 7, "c = '7'"),
        ("Utf8View", ["a", 7], "c IN ('a', '7')"),
        ("Utf8", "1-3", "c = '1-3'"),
        ("Boolean", numpy.bool_(True), "c"),
        ("Boolean", [True, None], "(c OR c IS NULL)"),
    ],
)
def test_value_of_a_program_is_compared_in_the_columns_type(
    type_: str, value: object, condition: str
) -> None:
    """A row 7 of the dataset is the text 7, and a number of numpy is a number."""
    assert filters.matching("c", type_, value) == condition


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("Int64", True),
        ("Float64", math.nan),
        ("Float64", [0.1, math.inf]),
        ("Boolean", "yes"),
        ("Boolean", 1),
        ("Utf8", 0.5),
        ("Timestamp(µs, None)", datetime(2026, 1, 2)),
        ("Int64", {"a": 1}),
    ],
)
def test_value_of_another_type_is_one_sentence(type_: str, value: object) -> None:
    """The sentence names the column and the value, and what can compare them."""
    with pytest.raises(QueryError, match=r"^c=.* cannot be compared with a column of type .*where"):
        filters.matching("c", type_, value)


@pytest.mark.parametrize("number", [-1, None, 2.5, "3"])
def test_limit_is_a_number_of_rows(number: object) -> None:
    """Other values are named."""
    with pytest.raises(QueryError, match=r"^The limit is .*; expected a number of rows\.$"):
        filters.row_count(number)


def test_condition_that_is_no_text_is_refused() -> None:
    """Expressions of other libraries are objects."""
    with pytest.raises(QueryError, match=r"^The condition is 3; expected SQL"):
        filters.where(3)  # type: ignore[arg-type]


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
