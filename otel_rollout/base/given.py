"""Read arguments of user code: their methods may raise, and their entries may never end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

from otel_rollout.base.errors import Unusable, pass_on, warn_once

MAX_NAMES: Final = 1 << 16
"""Maximum entries that are read from a mapping other than a dict: such a mapping may be endless."""
Entry = TypeVar("Entry")
Name = TypeVar("Name")


def listed(entries: Iterable[Entry], most: int) -> list[Entry]:
    """Return the entries of an iterable as a list.

    Raises:
        Unusable: there are more than ``most``.
    """
    found = list(islice(entries, most + 1))
    if len(found) > most:
        raise Unusable(f"has more than {most} entries")
    return found


def items(mapping: Mapping[Name, Entry]) -> Iterable[tuple[Name, Entry]]:
    """Return the entries of a mapping.

    Raises:
        Unusable: a mapping other than a dict has more than ``MAX_NAMES``.
    """
    return mapping.items() if type(mapping) is dict else listed(mapping.items(), MAX_NAMES)


def text_given(value: Any) -> str:
    """Return an argument that has to be a text as a builtin str.

    Raises:
        Unusable: the argument is not a text.
    """
    if not issubclass(type(value), str):  # `isinstance` asks the object, which may raise
        raise Unusable(f"is a {type(value).__name__}, and no text")
    return str(value)


def truth(name: str, value: Any) -> bool:
    """Return whether an argument is true.

    Raises:
        Unusable: the argument raised an exception.
    """
    with reading(name):
        return bool(value)
    return False


class reading:
    """A block that calls methods of an argument, whose exceptions are errors of the caller.

    Args:
        subject: the argument, as a warning names it.
        loss: what is lost, as the beginning of a warning. With ``loss``, an exception is logged as a warning,
            and the program continues after the block.

    Raises:
        Unusable: in place of an exception of the argument, without ``loss``.
    """

    def __init__(self, subject: str, loss: str = "") -> None:
        self._subject = subject
        self._loss = loss

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, Exception):
            return False
        pass_on(error)
        reason = error if isinstance(error, Unusable) else Unusable(f"raised a {type(error).__name__}")
        if not reason.subject:
            reason.subject = self._subject
        if not self._loss:
            raise reason from error
        warn_once(f"{self._loss}: {reason}", self._loss)
        return True


# --- numbers and text as builtin types, so that equal names are equal in every process ----------------------


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
