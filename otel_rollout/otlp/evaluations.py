"""Read and write scores in spans, and find the newest score of each name.

A score is recorded as an evaluation span, whose start is the score's time. The root span of the trajectory
repeats the value and the time. So readers find the same score, whichever of these spans they read, in any
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from otel_rollout.base import semconv
from otel_rollout.otlp.span import Span

Value = bool | int | float | str
Rank = tuple[bool, int, bool]
"""Sort key of a score: whether its time is known, the time, whether it has a comment. The greatest counts."""
ODD: Final = 1e150
"""Magnitude from which no sum or mean has a number, because its square is infinite. The views have it too."""
_NOT_FINITE: Final = frozenset(map(str, (math.nan, math.inf, -math.inf)))
_LABELS_OF_BOOL: Final = {"True": True, "False": False}


@dataclass(frozen=True)
class Evaluation:
    """A score that a span holds.

    Attributes:
        name: the score's name.
        value: the score. A number that JSON cannot represent is text (``nan``, ``inf``).
        time_ns: when the score was given, Unix time in ns.
        comment: the reason, in words; empty if none was given.
        origin: ``semconv.ORIGIN_…``; None for a score that the trajectory's root span repeats.
        is_dated: False for a score on a root span without a time. Any dated score has precedence over such a
            score.
    """

    name: str
    value: Value
    time_ns: int
    comment: str = ""
    origin: str | None = None
    is_dated: bool = True

    @property
    def rank(self) -> Rank:
        """Sort key: of two scores with one name, the one with the greater rank counts."""
        return self.is_dated, self.time_ns, bool(self.comment)


Score = TypeVar("Score", bound=Evaluation)


def newest_by(key: Callable[[Score], str], scores: Iterable[Score]) -> dict[str, Score]:
    """Map each key to the score with the greatest rank; of equal ranks, to the last."""
    found: dict[str, Score] = {}
    for score in scores:
        known = found.get(key(score))
        if known is None or score.rank >= known.rank:
            found[key(score)] = score
    return found


def newest(evaluations: Iterable[Evaluation]) -> dict[str, Evaluation]:
    """Map each name to the score with the greatest rank."""
    return newest_by(lambda evaluation: evaluation.name, evaluations)


def recorded_in(attributes: Mapping[str, Any], start_ns: int) -> Evaluation | None:
    """Read the score that an evaluation span records; None for any other span."""
    name = attributes.get(semconv.GEN_AI_EVALUATION_NAME)
    if not isinstance(name, str) or not name:
        return None
    value = _recorded_value(attributes)
    if value is None:
        return None
    comment = _text_in(attributes, semconv.GEN_AI_EVALUATION_EXPLANATION) or ""
    return Evaluation(name, value, start_ns, comment, _text_in(attributes, semconv.SCORE_ORIGIN))


def repeated_in(attributes: Mapping[str, Any], end_ns: int) -> list[Evaluation]:
    """Read the scores that a root span repeats.

    Undated scores get the span's end time.
    """
    found = []
    for key, attribute in attributes.items():
        name = key.removeprefix(semconv.SCORE_PREFIX)
        value = _score_value(attribute)
        if name and name != key and value is not None:
            time_ns: Any = attributes.get(semconv.SCORE_TIME_PREFIX + name)
            is_dated = type(time_ns) is int
            found.append(Evaluation(name, value, time_ns if is_dated else end_ns, is_dated=is_dated))
    return found


def repeated_by(span: Span) -> list[Evaluation]:
    """Read the scores that a root span repeats; none from any other span."""
    return [] if span.parent_id else repeated_in(span.attributes, span.end_ns)


def scores_of(span: Span) -> Iterator[tuple[str, Evaluation, bool]]:
    """Yield each score in a span: the scored span's id, the score, and whether it scores a trajectory."""
    for score in repeated_by(span):
        yield span.span_id, score, True
    recorded = recorded_in(span.attributes, span.start_ns)
    if recorded is not None:
        # An evaluation is a child of the span that it evaluates, so a late reward and the
        # `rollout.score.*` of its root are one score. No root repeats a score of another library.
        is_repeated = recorded.origin is None and span.scope.name == semconv.SCOPE
        yield span.parent_id or span.span_id, recorded, not is_repeated


def attributes_of(name: str, value: Value, comment: str | None, origin: str | None) -> dict[str, Value]:
    """Make the attributes of the evaluation span that records a score."""
    attributes: dict[str, Value] = {semconv.GEN_AI_EVALUATION_NAME: name}
    if (label := label_of(value)) is not None:
        attributes[semconv.GEN_AI_EVALUATION_SCORE_LABEL] = label
    if not isinstance(value, str):
        attributes[semconv.GEN_AI_EVALUATION_SCORE_VALUE] = float(value)
    if comment is not None:
        attributes[semconv.GEN_AI_EVALUATION_EXPLANATION] = comment
    if origin is not None:
        attributes[semconv.SCORE_ORIGIN] = origin
    return attributes


def label_of(value: Value | None) -> str | None:
    """Return the label of a score that is text, True or False; None for any other."""
    return str(value) if isinstance(value, (bool, str)) else None


def is_label(value: Value) -> bool:
    """Return whether a score is a text that stands neither for a number nor for True or False."""
    return isinstance(value, str) and value not in _NOT_FINITE and value not in _LABELS_OF_BOOL


def number_of(value: Value) -> float | None:
    """Convert a score to a number, including infinities; None for NaN and text."""
    try:
        number = float(value) if not isinstance(value, str) or "inf" in value.lower() else math.nan
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def value_of(number: Value | None, label: Value | None) -> Value | None:
    """Combine a number and a label: a bool if both say the same, else the number, else the label.

    The result is None without number and label.
    """
    if isinstance(label, str) and label in _LABELS_OF_BOOL and number == _LABELS_OF_BOOL[label]:
        return _LABELS_OF_BOOL[label]
    return label if number is None else number


def _recorded_value(attributes: Mapping[str, Any]) -> Value | None:
    """Return an evaluation's number, else its label, else the text that it has in place of a number.

    The result is a bool if number and label agree.
    """
    number = _score_value(attributes.get(semconv.GEN_AI_EVALUATION_SCORE_VALUE))
    label = _text_in(attributes, semconv.GEN_AI_EVALUATION_SCORE_LABEL)
    return label if isinstance(number, str) and label is not None else value_of(number, label)


def _text_in(attributes: Mapping[str, Any], key: str) -> str | None:
    """Return an attribute that is text; a label or a comment of another type counts as absent."""
    text = attributes.get(key)
    return text if isinstance(text, str) else None


def _score_value(attribute: Any) -> Value | None:
    """Return an attribute as a score; None if no score has its type."""
    if isinstance(attribute, float) and not math.isfinite(attribute):
        return str(attribute)
    return attribute if isinstance(attribute, (bool, int, float, str)) else None
