"""Estimate and measure how many bytes of JSON a value takes, and bound Python's work on the value."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any, Final

from otel_rollout.record.capture.encoding import converters
from otel_rollout.record.capture.encoding.converters import dataclass_fields
from otel_rollout.record.capture.encoding.limits import (
    MAX_CONVERTED_BYTES,
    MAX_ESTIMATED_ENTRIES,
    MAX_ESTIMATED_LEVELS,
    MAX_VISITED,
    MAX_WORK_UNITS,
    SPLIT_PARTS,
    TYPED_MEMBERS,
)

SCALARS: Final = frozenset({type(None), bool, int, float})
KEYS: Final = SCALARS | {str}
"""Types of the members of a tuple that may be a key."""
_CONTAINERS: Final = frozenset({dict, list, tuple})
_MEASURED: Final = KEYS | _CONTAINERS


def seems_larger(value: Any, size: int, levels: int = MAX_ESTIMATED_LEVELS) -> bool:
    """Estimate quickly whether a value takes more than ``size`` bytes.

    The estimate takes a few hundred nanoseconds. It visits the values of narrow dicts. It assumes that all
    members of a list are as large as the last one: in a conversation, that is the newest message.
    """
    # The hot path. Neither a loop with a queue nor fewer levels is faster.
    type_ = type(value)
    if type_ is dict:
        if len(value) > MAX_ESTIMATED_ENTRIES or levels <= 0:
            return 5 * len(value) > size or levels <= 0
        for part in value.values():
            type_ = type(part)
            if type_ is str:
                if len(part) > size:
                    return True
            elif type_ in _CONTAINERS:
                levels -= 1  # per container, not per level: the containers of each level would multiply
                if seems_larger(part, size, levels):
                    return True
        return False
    if type_ is list or type_ is tuple:
        count = len(value)
        return count > 0 and (2 * count > size or seems_larger(value[-1], size // count, levels))
    return type_ is str and len(value) > size


def is_larger(value: Any, size: int, work: Work) -> bool | None:
    """Measure whether a value takes more than ``size`` bytes; None: too many parts.

    The measure is a lower bound, so True is certain. Each level is measured by loops that run in C.
    """
    level = [value]
    while level:
        work.visits -= len(level)
        if work.visits < 0:
            return None
        types = set(map(type, level))
        if str in types:
            size -= sum(map(len, [part for part in level if type(part) is str]))
        lists = [part for part in level if type(part) is list or type(part) is tuple]
        dicts = [part for part in level if type(part) is dict] if dict in types else []
        if not types <= _MEASURED:
            others = [part for part in level if type(part) not in _MEASURED]
            work.visits -= 3 * len(others)
            for part in others[: max(work.visits, 0)]:
                size -= _measure_other(part, lists, dicts)
        size -= 2 * sum(map(len, lists)) + 5 * sum(map(len, dicts))
        if size < 0:
            return True
        lists = [part for part in lists if len(part) <= SPLIT_PARTS or not _begins_with_numbers(part)]
        if sum(map(len, lists)) + 2 * sum(map(len, dicts)) > work.visits:
            work.visits = 0
            return None
        values = chain.from_iterable(map(dict.values, dicts))
        level = [*chain.from_iterable(lists), *chain.from_iterable(dicts), *values]
    return size < 0


def _measure_other(part: Any, lists: list[Any], dicts: list[Any]) -> int:
    """Measure a value of another type; append its content to ``lists`` or ``dicts``."""
    type_ = type(part)
    if issubclass(type_, str):
        return str.__len__(part)
    if issubclass(type_, (dict, list)):
        base = dict if issubclass(type_, dict) else list
        if base.__len__(part) > MAX_VISITED:
            return 2 * base.__len__(part)
    if issubclass(type_, dict):
        dicts.append(dict(dict.items(part)))
    elif issubclass(type_, list):
        lists.append(list(list.__iter__(part)))
    elif hasattr(type_, "__dataclass_fields__"):
        lists.append(list(dataclass_fields(part).values()))
    return 0


def _begins_with_numbers(members: Any) -> bool:
    """Return whether the first members are numbers, as in a list of token ids."""
    return SCALARS.issuperset(map(type, islice(members, TYPED_MEMBERS)))


# --- the work that is left ---------------------------------------------------------------------------------


class Work:
    """The remaining work units and visits for one value.

    Attributes:
        units: remaining work units, see :data:`limits.MAX_WORK_UNITS`.
        visits: number of values that may still be visited to measure the value.
        reserved: work units that :meth:`convert` must leave.
    """

    def __init__(self, units: int = MAX_WORK_UNITS, visits: int = MAX_VISITED) -> None:
        self.units = units
        self.visits = visits
        self.reserved = 0

    def convert(self, value: Any) -> Any:
        """Convert an object to something nearer to JSON; this is orjson's ``default``.

        Raises:
            TooLarge: when the content is large, or the work units are used up.
        """
        try:
            if self.units <= self.reserved:
                raise converters.TooLarge
            converter = converters.converter_of(type(value))
            content = converter(value)
            type_ = type(content)
            self.units -= converters.WORK_UNITS.get(converter, 1)
            if type_ is list or type_ is dict:
                self.units -= len(content) >> (8 if converter is converters.convert_numpy_array else 4)
            if seems_larger(content, MAX_CONVERTED_BYTES):
                raise converters.TooLarge
            return content
        except BaseException:  # caught here to get a traceback, which `pass_on` needs and orjson drops
            raise
