"""Bound Python's work on one value, and convert the value's objects for orjson."""

from __future__ import annotations

from typing import Any

from otel_rollout.record.capture.encoding import converters
from otel_rollout.record.capture.encoding.limits import MAX_CONVERTED_BYTES, MAX_VISITED, MAX_WORK_UNITS
from otel_rollout.record.capture.encoding.size import seems_larger


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
