"""Parse the names of tail-sampling rules.

:mod:`otel_rollout.forwarder.tail_rules` applies the rules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final

from otel_rollout.base.setting_parsers import number, share
from otel_rollout.base.suggest import did_you_mean

_TAIL_RULES: Final[Mapping[str, Callable[[str], float] | None]] = {
    "errors": None,
    "validation": None,
    "zero": None,
    "spread": functools.partial(number, float, 0),
    "slow": functools.partial(number, float, 1),
    "long": functools.partial(number, float, 1),
    "rate": share,
}
"""Tail-sampling rule → parser of its number; None for a rule without a number."""


def forms() -> str:
    """Return how each rule is written: ```errors`, `spread=X```."""
    return ", ".join(f"`{name}=X`" if parse else f"`{name}`" for name, parse in _TAIL_RULES.items())


def tail_rules(value: str) -> dict[str, float]:
    """Parse ``errors,spread=0.5``: rule → its number; 1 for a rule without a number.

    Raises:
        ValueError: naming the part that cannot be used.
    """
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in value.split(","))):
        name, separator, argument = (piece.strip() for piece in part.partition("="))
        if name not in _TAIL_RULES:
            meant = did_you_mean(name, _TAIL_RULES)
            raise ValueError(f"has {name!r}, which is none of {', '.join(_TAIL_RULES)}.{meant}".rstrip("."))
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
