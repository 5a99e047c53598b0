"""Convert numbers and text to builtin types, so that equal names are equal in every process."""

from __future__ import annotations

from typing import Any, Final

from otel_rollout.base.interrupts import pass_on

PLAIN: Final = frozenset({int, str, bool, type(None)})
"""Types of identity values that are recorded unchanged."""
_MAX_INT: Final = 1 << 63
"""Floats below this number fit into OTLP's 64-bit integers."""


def scalar(value: Any) -> Any:
    """Convert a number or text to a builtin type, and a whole number to an int.

    So ``1``, ``1.0`` and NumPy's 1 are the same step in every process and backend. A bool, and a value of any
    other type, is returned unchanged.
    """
    value = builtin(value)
    if type(value) is float and abs(value) < _MAX_INT and value.is_integer():
        return int(value)
    return value


def builtin(value: Any) -> Any:
    """Convert a number or text to its builtin type; return other values unchanged."""
    if type(value) in PLAIN:
        return value
    if not isinstance(value, (int, float, str)):
        try:
            value = value.item()  # numpy and torch scalars
        except Exception as error:  # noqa: BLE001 - any other object, or an array
            pass_on(error)
            return value
    for base in (bool, int, float):  # subclasses: members of an enumeration, for example
        if isinstance(value, base):
            return base(value)
    return str.__str__(value) if isinstance(value, str) else value
