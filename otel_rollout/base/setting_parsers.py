"""Parse the text of environment variables.

Parsers raise ``ValueError`` with a message that completes a sentence about the value: "is not an integer".
"""

from __future__ import annotations

import functools
import ipaddress
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, get_args
from urllib.parse import unquote

from otel_rollout.base.suggest import closest

_HOURS: Final = {"h": 1, "d": 24, "w": 7 * 24}
_AGE: Final = re.compile(r"(\d{1,6}(?:\.\d+)?)\s*([hdw])", re.ASCII)


def text(value: str) -> str:
    """Accept any text that can be encoded as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("is not valid UTF-8") from None
    return value


def listed(value: str) -> list[str]:
    """Return the entries of a comma-separated text, without empty ones."""
    return [entry for part in value.split(",") if (entry := part.strip())]


def path_text(value: str) -> str:
    """Accept a path that this process can pass to the system.

    The path's bytes need not be valid UTF-8.
    """
    if "\0" in value:
        raise ValueError("holds a zero byte, which is not allowed in a path")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ValueError(
            f"cannot be encoded in {sys.getfilesystemencoding()}, this process's encoding of file names: set "
            "LC_ALL=C.UTF-8 or PYTHONUTF8=1"
        ) from None
    return value


def path(value: str) -> Path:
    """Parse a path."""
    return Path(path_text(value))


def flag(value: str) -> bool:
    """Parse a boolean; only ``true`` switches it on.

    The OpenTelemetry specification demands this.
    """
    word = value.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return word == "true"


def number(type_: type[int] | type[float], least: float, value: str) -> Any:
    """Parse a number that is not less than ``least``."""
    try:
        parsed = type_(value)
    except ValueError:
        raise ValueError(f"is not {'an integer' if type_ is int else 'a number'}") from None
    if math.isnan(parsed):
        raise ValueError("is not a number")
    if parsed < least:
        raise ValueError(f"is less than {least}")
    return parsed


positive: Final = functools.partial(number, int, 1)
"""Parse an integer from 1."""
count: Final = functools.partial(number, int, 0)
"""Parse an integer from 0."""
seconds: Final = functools.partial(number, float, 0)
"""Parse a duration in seconds, infinity included."""


def hours(value: str) -> float:
    """Parse a time such as ``12h``, ``30d`` or ``2w``; return its hours."""
    match = _AGE.fullmatch(value.strip())
    if match is None:
        raise ValueError("cannot be read: write hours, days or weeks, as 12h, 30d or 2w")
    return float(match[1]) * _HOURS[match[2]]


def age(value: str) -> str:
    """Accept an empty text, or a time above zero that :func:`hours` can parse."""
    if value and not hours(value):
        raise ValueError("is no time")
    return value.strip()


def share(value: str) -> float:
    """Parse a number from 0 to 1."""
    parsed: float = number(float, 0, value)
    if parsed > 1:
        raise ValueError("is not a share from 0 to 1")
    return parsed


def choice(words: Any) -> Callable[[str], str]:
    """Return a parser that accepts the words of a ``Literal``, in any case."""
    allowed = get_args(words)

    def parse(value: str) -> str:
        word = value.strip().lower()
        if word not in allowed:
            raise ValueError(f"is none of {', '.join(allowed)}{meant(word, allowed)}")
        return word

    return parse


def meant(word: str, allowed: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the most similar allowed word; empty if none is similar."""
    return f" (did you mean {found!r}?)" if (found := closest(word, allowed)) else ""


def names(value: str) -> dict[str, dict[str, Any]]:
    """Parse comma-separated names of exporters: name → empty options; leave out ``none``."""
    return {name: {} for name in listed(value) if name != "none"}


def hosts(value: str) -> str:
    """Parse comma-separated names and addresses of hosts; the result is in lower case."""
    entries = listed(text(value).lower())
    for entry in entries:
        is_ipv6 = entry.count(":") > 1 and "]:" not in entry
        if set(entry) & set("/@") or (":" in entry and not is_ipv6):
            raise ValueError(f"has {entry!r}, which is no host: leave out scheme, port and path")
    return ",".join(entry.strip("[]") if ":" in entry else entry for entry in entries)


def listening_address(value: str) -> str:
    """Parse ``true``, ``HOST:PORT`` or ``:PORT``; the result is ``HOST:PORT``, or empty for ``false``.

    Port 0 stands for a free one.
    """
    word = value.strip().lower()
    if word in ("", "false", "none"):
        return ""
    host, colon, port = ("", ":", "0") if word == "true" else word.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) >= 1 << 16:
        raise ValueError("is neither true nor an address such as 127.0.0.1:4318")
    host = host.strip("[]") or "127.0.0.1"
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise ValueError("names a host instead of a numeric address") from None
    return f"[{address}]:{int(port)}" if address.version == 6 else f"{address}:{int(port)}"


def bearer_token(value: str) -> str:
    """Accept a token of visible ASCII characters, which an HTTP header can hold."""
    token = value.strip()
    if not all("!" <= character <= "~" for character in token):
        raise ValueError("has characters that an HTTP header cannot hold")
    return token


def pairs(value: str) -> dict[str, str]:
    """Parse ``key=value,key=value``, percent-encoded.

    This is the format of ``OTEL_RESOURCE_ATTRIBUTES``.
    """
    found: dict[str, str] = {}
    for position, item in enumerate(listed(text(value)), 1):
        key, separator, entry = item.partition("=")
        if not separator or not key.strip():
            # After a comma, it may be the rest of a secret value.
            shown = "" if found else f", {item!r}"
            raise ValueError(f"is not key=value,key=value: look at entry {position}{shown}")
        found[unquote(key.strip())] = unquote(entry.strip())
    return found


_TAIL_RULES: Final[Mapping[str, Callable[[str], float] | None]] = {
    "errors": None,
    "validation": None,
    "zero": None,
    "spread": functools.partial(number, float, 0),
    "slow": functools.partial(number, float, 1),
    "long": functools.partial(number, float, 1),
    "rate": share,
}
"""Tail-sampling rule → parser of its number; None for a rule without a number. The rules themselves are in
:mod:`otel_rollout.deliver.tail_rules`."""


def tail_rules(value: str) -> dict[str, float]:
    """Parse ``errors,spread=0.5``: rule → its number; 1 for a rule without a number.

    Raises:
        ValueError: a part cannot be used; the message names the part.
    """
    found: dict[str, float] = {}
    for part in listed(value):
        name, separator, argument = (piece.strip() for piece in part.partition("="))
        if name not in _TAIL_RULES:
            allowed = f"{', '.join(_TAIL_RULES)}{meant(name, _TAIL_RULES)}"
            raise ValueError(f"has {name!r}, which is none of {allowed}")
        parse = _TAIL_RULES[name]
        if (parse is None) is bool(separator):
            needs = f"takes no number: {name}" if parse is None else f"needs a number: {name}=0.5"
            raise ValueError(f"has {part!r}, but {name} {needs}")
        try:
            found[name] = parse(argument) if parse else 1.0
        except ValueError as error:
            raise ValueError(f"has {part!r}, where {argument!r} {error}") from None
    return found


def tail_rule_text(value: str) -> str:
    """Accept text that :func:`tail_rules` can parse."""
    tail_rules(value)
    return value.strip()
