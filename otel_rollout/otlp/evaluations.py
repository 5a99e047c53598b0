"""Scores as spans hold them, and which of several counts: the newest by its own time.

A score is recorded as an evaluation span, whose start is the score's time. The root span of its trajectory
repeats the value with that time. So whoever sees some of these spans, in any order, comes to the same score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from otel_rollout.base import semconv

Value = bool | int | float | str
_LABELS_OF_BOOL: Final = {"True": True, "False": False}


@dataclass(frozen=True)
class Evaluation:
    """A score that a span holds.

    Attributes:
        name: what was scored.
        value: the score; a number that JSON cannot hold is its text (``nan``, ``inf``).
        time_ns: when it was given, Unix time in ns.
        comment: why, in words; empty if nobody said.
        origin: None if the trajectory's root span repeats it, else ``semconv.ORIGIN_…``.
        is_dated: False for a root's score whose own time nobody recorded: any dated one counts before it.
    """

    name: str
    value: Value
    time_ns: int
    comment: str = ""
    origin: str | None = None
    is_dated: bool = True

    @property
    def age(self) -> tuple[bool, int]:
        """Orders scores of one name: of two the greater counts."""
        return self.is_dated, self.time_ns


def recorded_in(attributes: Mapping[str, Any], start_ns: int) -> Evaluation | None:
    """Read the score that an evaluation span records; None for any other span."""
    name = attributes.get(semconv.GEN_AI_EVALUATION_NAME)
    value = _recorded_value(attributes)
    if not isinstance(name, str) or not name or value is None:
        return None
    comment = attributes.get(semconv.GEN_AI_EVALUATION_EXPLANATION)
    origin = attributes.get(semconv.SCORE_ORIGIN)
    return Evaluation(
        name,
        value,
        start_ns,
        str(comment) if comment is not None else "",
        origin if isinstance(origin, str) else None,
    )


def repeated_in(attributes: Mapping[str, Any], end_ns: int) -> list[Evaluation]:
    """Read the scores that a root span repeats; one without a time of its own gets the root's end."""
    found = []
    for key, held in attributes.items():
        name = key.removeprefix(semconv.SCORE_PREFIX)
        value = _plain(held)
        if name and name != key and value is not None:
            given_at = attributes.get(semconv.SCORE_TIME_PREFIX + name)
            if isinstance(given_at, int) and not isinstance(given_at, bool):
                found.append(Evaluation(name, value, given_at))
            else:
                found.append(Evaluation(name, value, end_ns, is_dated=False))
    return found


def newest(evaluations: Iterable[Evaluation]) -> dict[str, Evaluation]:
    """Name → the score that counts; of two with the same time the later in order."""
    found: dict[str, Evaluation] = {}
    for one in evaluations:
        if one.name not in found or one.age >= found[one.name].age:
            found[one.name] = one
    return found


def attributes_of(name: str, value: Value, comment: str | None, origin: str | None) -> dict[str, Value]:
    """Make the attributes of the evaluation span that records a score."""
    attributes: dict[str, Value] = {semconv.GEN_AI_EVALUATION_NAME: name}
    if isinstance(value, (bool, str)):
        attributes[semconv.GEN_AI_EVALUATION_SCORE_LABEL] = str(value)
    if not isinstance(value, str):
        attributes[semconv.GEN_AI_EVALUATION_SCORE_VALUE] = float(value)
    if comment is not None:
        attributes[semconv.GEN_AI_EVALUATION_EXPLANATION] = comment
    if origin is not None:
        attributes[semconv.SCORE_ORIGIN] = origin
    return attributes


def number_of(value: Value) -> float | None:
    """The score as a number, infinities included; None for NaN and for what is no number."""
    try:
        number = float(value) if not isinstance(value, str) or "inf" in value.lower() else math.nan
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _recorded_value(attributes: Mapping[str, Any]) -> Value | None:
    """The number of an evaluation, else its label. A bool is recorded as both."""
    number = _plain(attributes.get(semconv.GEN_AI_EVALUATION_SCORE_VALUE))
    label = _plain(attributes.get(semconv.GEN_AI_EVALUATION_SCORE_LABEL))
    if isinstance(label, str) and label in _LABELS_OF_BOOL and number == _LABELS_OF_BOOL[label]:
        return _LABELS_OF_BOOL[label]
    return label if number is None else number


def _plain(value: Any) -> Value | None:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str)) else None
