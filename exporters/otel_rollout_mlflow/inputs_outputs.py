"""Convert inputs and outputs so that MLflow reads back the recorded values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

from opentelemetry.util.types import AttributeValue

from otel_rollout.base import semconv

_DECODED_BY_MLFLOW: Final = frozenset('{["')
"""First characters of a string attribute that MLflow decodes as JSON."""
_LONG_NUMBER: Final = b"0" * 19
"""As many digits as an integer has that may not fit into 64 bits, all of them replaced by zeros."""
_DIGITS_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_MAX_OTLP_INT: Final = 2**63


def payload(attributes: Mapping[str, AttributeValue], value: str, mime_type: str) -> AttributeValue | None:
    """Return input or output in the form that MLflow reads back unchanged.

    MLflow decodes a string attribute once if it holds a JSON object, array or string, and keeps other
    strings as text. So JSON scalars are sent as native values, and text that only looks like JSON is sent as
    a JSON string. For a string without a mime type, MLflow decides.
    """
    recorded = attributes.get(value)
    declared = attributes.get(mime_type)
    if not isinstance(recorded, str):
        return recorded
    looks_decodable = recorded.lstrip()[:1] in _DECODED_BY_MLFLOW
    if not isinstance(declared, str):
        return _returnable(recorded) if looks_decodable else recorded
    if not declared.startswith(semconv.JSON_MIME_TYPE):
        return json.dumps(recorded, ensure_ascii=False) if looks_decodable else recorded
    return _returnable(recorded) if looks_decodable else _json_scalar(recorded)


def _returnable(text: str) -> str:
    """Turn integers beyond 64 bits into text, since MLflow would not show the trace."""
    # A regular expression for 19 digits takes ten times as long.
    if _LONG_NUMBER not in text.encode(errors="replace").translate(_DIGITS_AS_ZEROS):
        return text
    try:
        return json.dumps(json.loads(text, parse_int=_integer))
    except (ValueError, RecursionError):  # MLflow cannot decode it either, and keeps the text
        return text


def _integer(digits: str) -> int | str:
    value = int(digits)
    return value if -_MAX_OTLP_INT <= value < _MAX_OTLP_INT else digits


def _json_scalar(text: str) -> AttributeValue | None:
    try:
        value: AttributeValue | None = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, float):
        return value if math.isfinite(value) else text  # JSON has no NaN and no infinity
    if isinstance(value, int):
        return value if -_MAX_OTLP_INT <= value < _MAX_OTLP_INT else text
    return value
