"""Make a call's inputs and output from recorded values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from otel_rollout.base import semconv
from otel_rollout_weave import values

SCORES_KEY: Final = "scores"
"""Key of a root's output that holds scores whose names are already keys of the output."""
_RESERVED_BYTES: Final = 64 << 10
"""Bytes of a shortened call reserved for fields besides inputs, output and attributes."""


def inputs_of(attributes: Mapping[str, Any]) -> Any:
    """Return inputs as an object; any other value becomes ``{"value": …}``."""
    value, as_is = _payload(attributes, semconv.INPUT_VALUE, semconv.INPUT_MIME_TYPE)
    if isinstance(value, dict):
        return as_is or value
    return {} if value is None and as_is is None else {"value": as_is or value}


def output_of(attributes: Mapping[str, Any], scores: Mapping[str, Any]) -> Any:
    """Return the output with a root's scores, for filters by ``output.reward``."""
    value, as_is = _payload(attributes, semconv.OUTPUT_VALUE, semconv.OUTPUT_MIME_TYPE)
    return _with_scores(value, scores) if scores else as_is or value


def shortened(
    source: Mapping[str, Any], scores: Mapping[str, Any], attributes: dict[str, Any]
) -> dict[str, Any]:
    """Cut inputs, output and attributes until they fit a call.

    If one of them needs less than its share, the others may use the rest.

    Args:
        source: the span's attributes.
        scores: scores of a root; empty for any other span.
        attributes: the call's attributes.
    """
    output, _ = _payload(source, semconv.OUTPUT_VALUE, semconv.OUTPUT_MIME_TYPE)
    inputs, _ = _payload(source, semconv.INPUT_VALUE, semconv.INPUT_MIME_TYPE)
    whole = {
        "attributes": attributes,
        "inputs": inputs if isinstance(inputs, dict) else {"value": inputs},
        "output": _with_scores(output, scores) if scores else output,
    }
    sizes = {name: values.stored_bytes_exact(values.clean(value)) for name, value in whole.items()}
    left = values.MAX_CALL_BYTES - _RESERVED_BYTES
    fitting: dict[str, Any] = {}
    for share, name in zip((3, 2, 1), sorted(sizes, key=lambda name: sizes[name]), strict=True):
        if sizes[name] <= left // share:
            fitting[name] = values.clean(whole[name])
        else:
            fitting[name] = values.shortened(whole[name], left // share)
        left -= min(sizes[name], left // share)
    return fitting


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


def _payload(attributes: Mapping[str, Any], value: str, mime_type: str) -> tuple[Any, orjson.Fragment | None]:
    """Return input or output, and its recorded JSON if Weave can take that unchanged."""
    recorded = attributes.get(value)
    if isinstance(recorded, str) and str(attributes.get(mime_type, "")).startswith(semconv.JSON_MIME_TYPE):
        try:
            return values.decoded(recorded)
        except (ValueError, RecursionError):
            pass  # the span declares JSON, but the text is not JSON
    return values.clean(recorded), None
