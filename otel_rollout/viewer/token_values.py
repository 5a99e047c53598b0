"""Read the values per token that a trainer stored with a trajectory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.base import semconv
from otel_rollout.base import training_scores as names
from otel_rollout.viewer.summary import score_of


def token_values_in(spans: Iterable[ReadableSpan]) -> Mapping[str, Sequence[float | None]]:
    """Read the values per token that the newest score ``training_tokens`` of a trace has."""
    found = [span for span in spans if (score := score_of(span)) and score.name == names.TRAINING_TOKENS]
    newest = max(found, key=lambda span: span.start_time or 0, default=None)
    attributes = (newest.attributes or {}) if newest else {}
    values = {
        name.removeprefix(semconv.TOKENS_PREFIX): _numbers_in(text)
        for name, text in attributes.items()
        if name.startswith(semconv.TOKENS_PREFIX) and isinstance(text, str)
    }
    return {name: numbers for name, numbers in values.items() if numbers}


def _numbers_in(text: str) -> list[float | None]:
    """Return the numbers of a JSON array; an entry that is none is None."""
    try:
        values = json.loads(text)
    except ValueError:
        return []
    return [
        float(value) if isinstance(value, (int, float)) else None
        for value in (values if isinstance(values, list) else [])
    ]
