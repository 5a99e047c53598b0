"""Turn filters that a person types into SQL conditions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from otel_rollout.base.suggest import did_you_mean
from otel_rollout.table.select import QueryError, expression, literal

_NUMBER: Final = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_COMPARED: Final = re.compile(rf"(?P<operator><=|>=|!=|<>|==|=|<|>)\s*(?P<number>{_NUMBER})")
_RANGE: Final = re.compile(rf"(?P<first>{_NUMBER})\s*(?:-|\.\.)\s*(?P<last>{_NUMBER})")
_SINGLE: Final = re.compile(_NUMBER)
_OPERATORS: Final = {"==": "=", "!=": "<>"}
_FORMS: Final = "a number (3), a range (1-3), a comparison (<0.1), or several of them with commas"

Value = str | int | float | bool | None
"""A value to compare a column with."""


def numbers(column: str, text: str, source: str) -> str:
    """Return the condition that a column has one of the described numbers.

    Args:
        column: the column's name.
        text: ``3``, ``1-3``, ``<0.1``, or several of these with commas between.
        source: origin of the text, for the error.

    Raises:
        QueryError: the text has another form.
    """
    parts = [part.strip() for part in text.split(",")]
    return _any(_numbers(column, part, source) for part in parts)


def _numbers(column: str, text: str, source: str) -> str:
    if match := _COMPARED.fullmatch(text):
        operator = _OPERATORS.get(match["operator"], match["operator"])
        return f"{column} {operator} {match['number']}"
    if match := _RANGE.fullmatch(text):
        return f"{column} BETWEEN {match['first']} AND {match['last']}"
    if _SINGLE.fullmatch(text):
        return f"{column} = {text}"
    raise QueryError(f"{source} {text!r} cannot be read: write {_FORMS}.")


def equals(column: str, value: Value | Sequence[Value]) -> str:
    """Return the condition that a column has a value, or one of several."""
    if not isinstance(value, (str, int, float, type(None))):
        literals = [_literal(each) for each in value if type(each) is str or type(each) is int]
        if len(literals) == len(value) > 1:
            return f"{column} IN ({', '.join(literals)})"
        return _any(equals(column, each) for each in value)
    if value is None:
        return f"{column} IS NULL"
    if isinstance(value, bool):
        return column if value else f"NOT {column}"
    return f"{column} = {_literal(value)}"


def _literal(value: str | int | float) -> str:
    return literal(value) if isinstance(value, str) else repr(value)


def all_of(conditions: Iterable[str]) -> str:
    """Return `` WHERE …`` of all conditions, or nothing without conditions."""
    joined = " AND ".join(conditions)
    return f" WHERE {joined}" if joined else ""


def where(text: str) -> str:
    """Return the condition of an expression that a user has written.

    Raises:
        QueryError: the text is no single expression.
    """
    return expression(text)


def order(text: str, columns: Sequence[str]) -> str:
    """Return ``column`` or ``-column`` (descending) as SQL; nulls come last.

    Raises:
        QueryError: there is no such column.
    """
    name = text.removeprefix("-")
    if name not in columns:
        known = ", ".join(columns)
        raise QueryError(f"There is no column {name!r}.{did_you_mean(name, columns)} Columns: {known}.")
    return f"{name} {'DESC' if text.startswith('-') else 'ASC'} NULLS LAST"


def _any(conditions: Iterable[str]) -> str:
    found = list(conditions)
    return found[0] if len(found) == 1 else f"({' OR '.join(found) or 'false'})"
