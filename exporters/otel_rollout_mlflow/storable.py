"""Change values that MLflow could not store or could not show.

PostgreSQL holds no NUL character in text. For a value that is nested too deeply, MLflow answers with an
error, for its trace and for a search that finds the trace.
"""

from __future__ import annotations

import json
from typing import Any, Final

from opentelemetry.util.types import AttributeValue

from otel_rollout.otlp.json_values import MAX_DEPTH
from otel_rollout.otlp.span import with_utf8

DECODED_BY_MLFLOW: Final = frozenset('{["')
"""First characters of a string attribute that MLflow decodes as JSON."""
MAX_LEVELS: Final = MAX_DEPTH
"""Maximum levels of objects and arrays in a value, as ``otel_rollout.otlp.json_values`` reads them back.

A level takes up to three of the 100 levels that protobuf reads."""
_NUL: Final = "\0"
_SYMBOL_OF_NUL: Final = "\u2400"
_ESCAPED_NUL: Final = "\\u0000"
_LONG_NUMBER: Final = b"0" * 19
"""The digits of an integer that may not fit into 64 bits, each replaced by 0."""
_DIGITS_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_BRACES_AS_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(code for code in range(256) if code not in b"[]{}")
_MAX_OTLP_INT: Final = 2**63


def storable_text(text: str) -> str:
    """Replace NUL characters by their visible symbol, U+2400."""
    return text.replace(_NUL, _SYMBOL_OF_NUL)


def storable_attribute(value: AttributeValue) -> AttributeValue:
    """Change an attribute's text, which MLflow decodes if it is JSON; other values stay."""
    if not isinstance(value, str):
        return value
    return (
        storable_json(storable_text(value))
        if value.lstrip()[:1] in DECODED_BY_MLFLOW
        else storable_text(value)
    )


def tag_attribute(text: str) -> str:
    """Return the attribute from which MLflow makes a tag with a text.

    MLflow removes a text's quotation marks if the text is a JSON string, and decodes the attribute if it is
    JSON.
    """
    return json.dumps(text, ensure_ascii=False) if text.lstrip()[:1] == '"' or _is_too_deep(text) else text


def storable_json(text: str) -> str:
    """Make JSON text storable and readable; other text stays.

    Integers beyond 64 bits become text, since MLflow would not show the trace. Values more than
    ``MAX_LEVELS`` deep become text: their JSON.
    """
    # A regular expression for 19 digits takes ten times as long.
    has_long_number = _LONG_NUMBER in text.encode(errors="replace").translate(_DIGITS_AS_ZEROS)
    if not has_long_number and _ESCAPED_NUL not in text and not _is_too_deep(text):
        return text
    try:
        stored = with_utf8(_storable(json.loads(text, parse_int=_integer), MAX_LEVELS))
        return json.dumps(stored, ensure_ascii=False)
    except ValueError:  # MLflow cannot decode it either, and keeps the text
        return text
    except RecursionError:
        return json.dumps(text, ensure_ascii=False)


def fits_integer(value: int) -> bool:
    """Return whether an integer fits into 64 bits with a sign."""
    return -_MAX_OTLP_INT <= value < _MAX_OTLP_INT


def _is_too_deep(text: str) -> bool:
    """Return whether JSON text has more than ``MAX_LEVELS`` levels, without decoding it."""
    if text.count("{") + text.count("[") <= MAX_LEVELS:
        return False
    outside_strings = "".join(text.replace(r"\\", "").replace(r"\"", "").split('"')[::2])
    brackets = outside_strings.encode(errors="replace").translate(_BRACES_AS_BRACKETS, _NO_BRACKETS)
    for _ in range(MAX_LEVELS):  # each pass removes the innermost level
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _storable(value: Any, levels: int) -> Any:
    if isinstance(value, str):
        return storable_text(value)
    if not isinstance(value, (dict, list)):
        return value
    if not levels:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return [_storable(entry, levels - 1) for entry in value]
    return {storable_text(key): _storable(entry, levels - 1) for key, entry in value.items()}


def _integer(digits: str) -> int | str:
    value = int(digits)
    return value if fits_integer(value) else digits
