"""Read the values per token that a trainer stored with a trajectory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from otel_rollout.base import semconv


def token_values_of(attributes: Mapping[str, object]) -> Mapping[str, Sequence[float | None]]:
    """Read the values per token from the attributes of a score ``training_tokens``."""
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
