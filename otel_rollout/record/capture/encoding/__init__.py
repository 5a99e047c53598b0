"""Encode any Python value as JSON, of bounded size and in bounded time.

docs/recording.md lists what is recorded of each type. There are two ways:

- Most values go straight through orjson, which takes well under a microsecond per kilobyte.
- A value that orjson refuses (huge integers, cycles, odd keys, lone surrogates …), or that is larger than the
  limit, is encoded in parts (:mod:`.in_parts`) until the limit is reached.

A quick estimate finds values that may be too large, and these are measured. The measure is a lower bound: a
value that measures too large is too large. If a value has too many parts to measure, the estimate decides.

The event loop waits while a value is encoded. So Python's work is bounded by counts (:mod:`.limits`): of
values visited, and of work units spent on what orjson refuses. orjson's own work is fast and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from otel_rollout.base.errors import pass_on
from otel_rollout.record.capture.encoding.in_parts import encode_in_parts
from otel_rollout.record.capture.encoding.limits import MAX_CONVERSION_UNITS, MEASURED_AFTER_LARGE
from otel_rollout.record.capture.encoding.size import Work, is_larger, seems_larger
from otel_rollout.record.recording.state import state

Encoder = Callable[[Any, int], bytes]
"""Encodes a value as JSON. The second argument is the approximate maximum size in bytes."""
_NEEDS_DEFAULT: Final = "Type is not JSON serializable"
"""orjson's message for an object that ``default`` can convert. For a refused key, orjson has another
message."""
_MAX_OUTLINED: Final = 64
"""Maximum entries of a dict that are described; further entries are omitted."""
_SIZED: Final = (str, bytes, bytearray, list, tuple, dict, set, frozenset)
_dumps = orjson.dumps


def to_json(value: Any, limit: int) -> bytes:
    """Encode a value as JSON of at most about ``limit`` bytes.

    Objects become their content (dataclasses, pydantic, attrs, numpy, torch) or their ``repr``. NaN and
    infinities become null, as JSON has none. Each omission is noted in its place. Only the exception of a
    signal handler is raised: a user's KeyboardInterrupt, for example.
    """
    try:
        if state.values_to_measure or seems_larger(value, limit):
            state.values_to_measure -= state.values_to_measure > 0
            larger = is_larger(value, limit, Work())
            if larger or (larger is None and seems_larger(value, limit)):
                return encode_in_parts(value, limit)
        encoded = _dumps(value)
        if len(encoded) <= limit:
            return encoded
        state.values_to_measure = MEASURED_AFTER_LARGE
    except Exception as error:  # noqa: BLE001 - orjson refused a part, or another thread changed the value
        pass_on(error)
        if _NEEDS_DEFAULT in str(error):
            return _with_objects(value, limit)
    return encode_in_parts(value, limit)


def _with_objects(value: Any, limit: int) -> bytes:
    """Encode a value that holds objects, which are converted for orjson."""
    try:
        encoded = _dumps(value, Work(units=MAX_CONVERSION_UNITS).convert)
        if len(encoded) <= limit:
            return encoded
        state.values_to_measure = MEASURED_AFTER_LARGE
    except Exception as error:  # noqa: BLE001 - a user's object: any of its methods may have been called
        pass_on(error)
    return encode_in_parts(value, limit)


def _outline(value: Any, limit: int) -> bytes:
    """Describe a value, or each value of a dict, by type and size."""
    if type(value) is dict and value and all(type(key) is str for key in value):
        names = list(value)[:_MAX_OUTLINED]
        return _dumps({name: _description(value[name]) for name in names})
    return _dumps(_description(value))


def _outline_of_tool(value: Any, limit: int) -> bytes:
    """Describe a tool's arguments by type and size; keep the name of a tool that is called by its name."""
    name = value.get("name") if type(value) is dict and "arguments" in value else None
    outline = _outline(value, limit)
    return outline if type(name) is not str else to_json({**orjson.loads(outline), "name": name}, limit)


def _description(value: Any) -> str:
    type_ = type(value)
    return f"<{type_.__name__} of {len(value)}>" if issubclass(type_, _SIZED) else f"<{type_.__name__}>"


ENCODERS: Final[Mapping[str, Encoder | None]] = {"full": to_json, "metadata": _outline, "none": None}
"""Value of ``OTEL_ROLLOUT_CAPTURE_CONTENT`` → encoder; None: values are not recorded."""
ENCODERS_OF_TOOLS: Final = {**ENCODERS, "metadata": _outline_of_tool}
"""The same for the arguments of a tool."""
