"""Turn filters that a person types into SQL conditions."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from otel_rollout.base.given import scalar
from otel_rollout.base.suggest import unknown
from otel_rollout.table.rows import integer_in
from otel_rollout.table.select import QueryError, expression, literal

_NUMBER: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_COMPARED: Final = re.compile(rf"(?P<operator><=|>=|!=|<>|==|=|<|>)\s*(?P<number>{_NUMBER})")
_RANGE: Final = re.compile(rf"(?P<first>{_NUMBER})\s*(?:[-\u2013]|\.\.)\s*(?P<last>{_NUMBER})")
_SINGLE: Final = re.compile(_NUMBER)
_OPERATORS: Final = {"==": "=", "!=": "<>"}
_TEXTS: Final = ("Utf8", "LargeUtf8")
_NUMBERS: Final = ("Int", "UInt", "Float", "Decimal")
_TRUTH: Final = "Boolean"
"""Beginnings of Arrow's types of texts, numbers and bools."""
_FORMS: Final = "a number (3), a range (1-3), a comparison (<0.1), or several of them with commas"

Value = str | int | float | bool | None
"""A value to compare a column with."""
Step = int | str | None
"""A step: an integer, the text of a step that is no integer of 64 bits, or None if none was recorded."""
OF_TRAJECTORY: Final = "coalesce(score_by, '') <> 'identity'"
"""SQL condition that a span is part of a trajectory: a score by identity is a trace of its own."""
NO_STEP: Final = "-"
"""Text in place of a missing step, as in a trajectory's path."""


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
    return any_of(_numbers(column, part, source) for part in parts)


def steps(text: str, source: str) -> str:
    """Return the condition that a row is of one of the described steps.

    Args:
        text: integers, ranges and comparisons, as :func:`numbers` takes them; texts of other steps, also with
            outer spaces; ``-`` for no step.
        source: origin of the text, for the error.

    Raises:
        QueryError: a range ends before it begins.
    """
    parts = text.split(",")
    stripped = [part.strip() for part in parts] if len(parts) > 1 else []
    return any_of(_step(part, source) for part in dict.fromkeys([*parts, *stripped]))


def _step(text: str, source: str) -> str:
    described = text.strip()
    if _COMPARED.fullmatch(described) or _RANGE.fullmatch(described):
        return _numbers("step", described, source)
    return of_steps([step_named(text)])


def of_steps(steps: Collection[Step]) -> str:
    """Return the condition that a row is of one of some steps; the text ``-`` is none, as in a path."""
    numbers = [step for step in steps if isinstance(step, int)]
    others = [*(step for step in steps if not isinstance(step, int)), *([NO_STEP] if None in steps else [])]
    return any_of([equals("step", numbers), f"(step IS NULL AND {equals('step_text', others)})"])


def of_path(validate: bool, step: str) -> list[str]:
    """Return conditions that all rows meet whose path begins like this; a step's name may have slashes."""
    number = integer_in(step)
    of_step = [equals("step", number)] if number is not None else []
    return [equals("validate", validate), any_of([*of_step, "step IS NULL"])]


def step_named(text: str) -> Step:
    """Return the step that a text names; None for ``-``."""
    number = integer_in(text)
    return number if number is not None else None if text == NO_STEP else text


def step_in(row: Mapping[str, Any]) -> Step:
    """Return the step of a row."""
    step: Step = row["step_text"] if row["step"] is None else row["step"]
    return step


def step_out_of(row: dict[str, Any]) -> tuple[bool, Step]:
    """Remove the columns of the step from a row; return whether the step is of validation, and the step."""
    step = step_in(row)
    del row["step"], row["step_text"]
    return row.pop("validate"), step


def _numbers(column: str, text: str, source: str) -> str:
    if match := _COMPARED.fullmatch(text):
        sign = _OPERATORS.get(match["operator"], match["operator"])
        return f"{column} {sign} {_in_sql(match['number'])}"
    if match := _RANGE.fullmatch(text):
        if Decimal(match["first"]) > Decimal(match["last"]):
            raise QueryError(f"{source} {text!r} ends before it begins: write the smaller number first.")
        return f"{column} BETWEEN {_in_sql(match['first'])} AND {_in_sql(match['last'])}"
    if _SINGLE.fullmatch(text):
        return f"{column} = {_in_sql(text)}"
    raise QueryError(f"{source} {text!r} cannot be read: write {_FORMS}.")


def _in_sql(number: str) -> str:
    """Return a number that a person has typed, such as ``+1`` or ``.5``, as SQL."""
    digits = number.lstrip("+-")
    return f"{'-' if number.startswith('-') else ''}{'0' if digits.startswith('.') else ''}{digits}"


def matching(column: str, type_: str, value: Any) -> str:
    """Return the condition that a column has a value that a program gives, or one of several.

    Args:
        column: the column's name.
        type_: the column's Arrow type.
        value: a value of the column's type, or several; for a column of numbers also a text such as ``1-3``.

    Raises:
        QueryError: a value cannot be compared with the column.
    """
    values = _values(value)
    if values is not None:
        if not any(isinstance(each, str) for each in values) or type_.startswith(_TEXTS):
            return equals(column, [_comparable(column, type_, each) for each in values])
        return any_of(matching(column, type_, each) for each in values)
    value = _plain(value)
    if isinstance(value, str) and type_.startswith(_NUMBERS):
        return numbers(column, value, f"{column}=")
    return equals(column, _comparable(column, type_, value))


def matching_steps(value: Any) -> str:
    """Return the condition that a row is of a step that a program gives, or of one of several.

    Args:
        value: a step, None for no step, a text that :func:`steps` takes, or several of them.

    Raises:
        QueryError: a value is no step, or a range ends before it begins.
    """
    several = _values(value)
    values = [_plain(value)] if several is None else several
    others = [_comparable("step", "Int64", scalar(each)) for each in values if not isinstance(each, str)]
    named = of_steps([None if step is None else step_named(str(step)) for step in others])
    return any_of([named, *(steps(each, "step=") for each in values if isinstance(each, str))])


def _values(value: Any) -> list[Any] | None:
    """Return several values as builtin ones; None for a single value."""
    value = _plain(value)
    return (
        [_plain(each) for each in value] if isinstance(value, (list, tuple, set, frozenset, range)) else None
    )


def _plain(value: Any) -> Any:
    """Return a value of numpy or pandas as a builtin value."""
    return value.tolist() if hasattr(value, "tolist") else value


def _comparable(column: str, type_: str, value: Any) -> Value:
    """Convert a value to the column's type: the dataset row 7 becomes the text ``7``."""
    if value is None:
        return None
    if isinstance(value, bool):
        if type_ == _TRUTH:
            return value
    elif type_.startswith(_TEXTS) and isinstance(value, (str, int)):
        return str(value)
    elif type_.startswith(_NUMBERS) and isinstance(value, (int, float)) and math.isfinite(value):
        return value
    raise QueryError(
        f"{column}={value!r} cannot be compared with a column of type {type_}; a condition in SQL can: "
        "where(…)."
    )


def row_count(number: Any) -> int:
    """Return a number of rows.

    Raises:
        QueryError: the number is no integer, or negative.
    """
    try:
        found = operator.index(number)
    except TypeError:
        found = -1
    if found < 0:
        raise QueryError(f"The limit is {number!r}; expected a number of rows.")
    return found


def equals(column: str, value: Value | Sequence[Value]) -> str:
    """Return the condition that a column has a value, or one of several."""
    if not isinstance(value, (str, int, float, type(None))):
        listed = [each for each in value if type(each) is str or type(each) is int]
        if len(listed) < 2:
            return any_of(equals(column, each) for each in value)
        others = [equals(column, each) for each in value if type(each) not in (str, int)]
        return any_of([f"{column} IN ({', '.join(map(_literal, listed))})", *others])
    if value is None:
        return f"{column} IS NULL"
    if isinstance(value, bool):
        return column if value else f"NOT {column}"
    return f"{column} = {_literal(value)}"


def _literal(value: str | int | float) -> str:
    return literal(value) if isinstance(value, str) else repr(value)


def all_of(conditions: Iterable[str]) -> str:
    """Return `` WHERE …`` of all conditions; an empty text without conditions."""
    joined = " AND ".join(conditions)
    return f" WHERE {joined}" if joined else ""


def where(text: str) -> str:
    """Return the condition of an expression that a user has written.

    Raises:
        QueryError: the text is no single expression.
    """
    if not isinstance(text, str):
        raise QueryError(f"The condition is {text!r}; expected SQL as text, such as 'reward < 0.1'.")
    return expression(text)


def order(text: str, columns: Sequence[str]) -> str:
    """Return ``column`` or ``-column`` (descending) as SQL; nulls come last.

    Raises:
        QueryError: there is no such column.
    """
    name = known(str(text).removeprefix("-"), columns)
    return f"{name} {'DESC' if str(text).startswith('-') else 'ASC'} NULLS LAST"


def known(name: str, columns: Sequence[str]) -> str:
    """Return the name of one of the columns.

    Raises:
        QueryError: there is no such column.
    """
    if name not in columns:
        raise QueryError(unknown("column", name, columns))
    return name


def any_of(conditions: Iterable[str]) -> str:
    """Return the condition that one of several holds; ``false`` without any."""
    found = list(conditions)
    return found[0] if len(found) == 1 else f"({' OR '.join(found) or 'false'})"
