"""Read an exporter's settings from arguments, else from variables; mask secrets."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import SplitResult


class Given(NamedTuple):
    """A setting as it was given.

    Attributes:
        value: the text; None if nothing was given.
        source: origin of the value, for messages: ``argument=`` or the name of a variable. If nothing was
            given, the variable to set.
    """

    value: str | None
    source: str


def given(argument: str, value: str | None, *variables: str) -> Given:
    """Return an argument's value, else the value of the first variable that is set.

    Empty counts as not given.

    Args:
        argument: name of the argument.
        value: value of the argument.
        variables: environment variables that replace a missing argument, the most specific first.
    """
    if value:
        return Given(value, f"{argument}=")
    for variable in variables:
        found = os.environ.get(variable, "")
        if found.strip():
            return Given(found, variable)
    return Given(None, variables[-1] if variables else f"{argument}=")


def seconds(argument: str, value: float | None, *variables: str, default: float) -> float:
    """Read a positive number of seconds: argument, else variable, else default.

    Raises:
        ValueError: the value is not a number, not positive or infinite; the message names its source.
    """
    text, source = given(argument, None if value is None else str(value), *variables)
    if text is None:
        return default
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ValueError(f"{source} is {text!r}; expected a positive number of seconds.")
    return found


def positive_bytes(argument: str, value: int) -> int:
    """Check an argument that is a number of bytes.

    Raises:
        ValueError: the number is not positive.
    """
    if value <= 0:
        raise ValueError(f"{argument}= is {value}; expected a positive number of bytes.")
    return value


def without_credentials(parts: SplitResult) -> str:
    """Return an address without credentials, query, fragment and trailing slash."""
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl().rstrip("/")


def basic_auth(user: str, password: str) -> str:
    """Encode user name and password as basic authentication sends them."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def masked(text: str, secrets: Iterable[str | None]) -> str:
    """Replace secrets in a text by ``***``, longer secrets first."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
