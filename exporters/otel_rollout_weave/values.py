"""Make a call's inputs and output from recorded values, as valid JSON of bounded size."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from otel_rollout.base import semconv

MAX_CALL_BYTES: Final = 3 << 20
"""Maximum bytes of a call's JSON in ASCII; larger calls are shortened. Weave's store accepts 3.5 MiB."""

_MAX_DEPTH: Final = 100
"""Maximum levels of nesting in a value; deeper values become text."""
_MAX_DEEP_CHARS: Final = 1000
"""Maximum characters of the text of a value that is nested too deeply; the rest is cut."""
_MIN_TEXT_CHARS: Final = 256
"""Minimum characters to which texts of a large value are cut."""
# Weave's client takes these characters in the server's answers for line ends, and cannot read the parts.
_SEPARATORS: Final = {0x85: "\n", 0x2028: "\n", 0x2029: "\n"}
_SEPARATOR: Final = re.compile("[\x85\u2028\u2029]|\\\\u(?:0085|202[89])")
_WORST_GROWTH: Final = 3
"""Maximum bytes of ASCII JSON per byte of UTF-8: an emoji takes 4 bytes in UTF-8 and 12 in ASCII."""
SCORES_KEY: Final = "scores"
"""Key of a root's output that holds scores whose names are already keys of the output."""
_RESERVED_BYTES: Final = 64 << 10
"""Bytes of a shortened call reserved for fields besides inputs, output and attributes."""


def inputs_of(attributes: Mapping[str, Any]) -> Any:
    """Return inputs as an object; any other value becomes ``{"value": …}``."""
    value, as_is = _payload(attributes, semconv.INPUT_VALUE)
    if isinstance(value, dict):
        return as_is or value
    return {} if value is None and as_is is None else {"value": as_is or value}


def output_of(attributes: Mapping[str, Any], scores: Mapping[str, Any]) -> Any:
    """Return the output with a root's scores, for filters by ``output.reward``."""
    value, as_is = _payload(attributes, semconv.OUTPUT_VALUE)
    return _with_scores(value, scores) if scores else as_is or value


def shortened_parts(
    source: Mapping[str, Any], scores: Mapping[str, Any], attributes: dict[str, Any]
) -> dict[str, Any]:
    """Cut inputs, output and attributes until they fit a call.

    If one of them needs less than its share, the others may use the rest.

    Args:
        source: the span's attributes.
        scores: scores of a root; empty for any other span.
        attributes: the call's attributes.
    """
    output, _ = _payload(source, semconv.OUTPUT_VALUE)
    inputs, _ = _payload(source, semconv.INPUT_VALUE)
    parts = {
        "attributes": attributes,
        "inputs": inputs if isinstance(inputs, dict) else {"value": inputs},
        "output": _with_scores(output, scores) if scores else output,
    }
    parts = {name: clean(part) for name, part in parts.items()}
    sizes = {name: stored_bytes_exact(part) for name, part in parts.items()}
    left = MAX_CALL_BYTES - _RESERVED_BYTES
    for share, name in zip((3, 2, 1), sorted(sizes, key=lambda name: sizes[name]), strict=True):
        if sizes[name] > left // share:
            parts[name] = shortened(parts[name], left // share)
        left -= min(sizes[name], left // share)
    return parts


def _with_scores(value: Any, scores: Mapping[str, Any]) -> dict[str, Any]:
    """Put scores into an output; those whose keys are taken go below ``SCORES_KEY``."""
    if value is None:
        return dict(scores)
    output = value if isinstance(value, dict) else {"value": value}
    beside = {name: score for name, score in scores.items() if name not in output}
    taken = {
        name: score
        for name, score in scores.items()
        if name in output and not _are_equal(output[name], score)
    }
    if not taken:
        return {**beside, **output}
    below = SCORES_KEY
    while below in output or below in beside:
        below = f"_{below}"
    return {**beside, **output, below: taken}


def _are_equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _payload(attributes: Mapping[str, Any], name: str) -> tuple[Any, orjson.Fragment | None]:
    """Return input or output, and its recorded JSON if Weave can take that unchanged."""
    recorded, declared = attributes.get(name), str(attributes.get(semconv.MIME_TYPES[name], ""))
    if isinstance(recorded, str) and declared.startswith(semconv.JSON_MIME_TYPE):
        try:
            return decoded(recorded)
        except (ValueError, RecursionError):
            pass  # the span declares JSON, but the text is not JSON
    return clean(recorded), None


# --- values -------------------------------------------------------------------------------------------------


def decoded(text: str) -> tuple[Any, orjson.Fragment | None]:
    """Decode JSON text; return the text as well if Weave can take it unchanged.

    Raises:
        ValueError: the text is not JSON.
    """
    try:
        value = orjson.loads(text)
        return (clean(value), None) if _has_separator(text) else (value, orjson.Fragment(text))
    except ValueError:  # invalid, or NaN, half a surrogate or deep nesting, which Python's json accepts
        return clean(json.loads(text)), None


def _has_separator(json_text: str) -> bool:
    if json_text.isascii() and "\\u" not in json_text:
        return False
    return _SEPARATOR.search(json_text) is not None


def clean(value: Any, depth: int = 0) -> Any:
    """Replace what JSON, UTF-8, Weave's store or Weave's client cannot hold."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-8", "replace").decode().translate(_SEPARATORS)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= _MAX_DEPTH:
        return clean(str(value)[:_MAX_DEEP_CHARS])
    if isinstance(value, Mapping):
        return {clean(str(key)): clean(entry, depth + 1) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(entry, depth + 1) for entry in value]
    return clean(str(value))


def to_json(value: Any) -> bytes:
    """Encode a clean value."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def stored_bytes(encoded: bytes) -> int:
    """Estimate the size in Weave's store, which keeps JSON in ASCII."""
    if encoded.isascii() or len(encoded) * _WORST_GROWTH <= MAX_CALL_BYTES:
        return len(encoded)
    return len(json.dumps(encoded.decode()))


def shortened(value: Any, limit: int) -> Any:
    """Cut a value's longest texts until the value takes ``limit`` bytes in the store.

    A cut text ends with a note of its length. If cut texts do not suffice (for a million small entries), the
    beginning of the value's JSON replaces the value.
    """
    value = clean(value)
    length = limit // 2
    while length >= _MIN_TEXT_CHARS:
        cut = _with_short_texts(value, length)
        if stored_bytes_exact(cut) <= limit:
            return cut
        length //= 2
    encoded = to_json(value).decode()
    return {"shortened": _cut(encoded, max(limit // 24, 64)), "characters": len(encoded)}


def stored_bytes_exact(value: Any) -> int:
    """Measure the bytes of a clean value's JSON in the store."""
    return len(json.dumps(value))


def _with_short_texts(value: Any, length: int) -> Any:
    if isinstance(value, str):
        return _cut(value, length)
    if isinstance(value, dict):
        return {key: _with_short_texts(entry, length) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_short_texts(entry, length) for entry in value]
    return value


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    return f"{text[:length]}… ({len(text) - length} of {len(text)} characters left out: too large for Weave)"
