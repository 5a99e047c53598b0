"""Convert inputs and outputs so that MLflow reads back the recorded values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from opentelemetry.util.types import AttributeValue

from otel_rollout.base import semconv
from otel_rollout_mlflow.storable import DECODED_BY_MLFLOW, fits_integer, storable_json, storable_text


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
    recorded = storable_text(recorded)
    looks_decodable = recorded.lstrip()[:1] in DECODED_BY_MLFLOW
    if not isinstance(declared, str):
        return storable_json(recorded) if looks_decodable else recorded
    if not declared.startswith(semconv.JSON_MIME_TYPE):
        return json.dumps(recorded, ensure_ascii=False) if looks_decodable else recorded
    return storable_json(recorded) if looks_decodable else _json_scalar(recorded)


def _json_scalar(text: str) -> AttributeValue | None:
    try:
        value: AttributeValue | None = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, float):
        return value if math.isfinite(value) else text  # JSON has no NaN and no infinity
    if isinstance(value, int):
        return value if fits_integer(value) else text
    return value
