"""Mark model calls with what matters for training: changed weights, and a prompt that breaks the prefix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.otlp.span import Span

_SAID: Final = {
    "retokenized": "were re-encoded",
    "cut": "were left out",
    "beginning": "were changed, before the first answer",
    "edited": "were changed",
}
"""Kind of a broken prefix → what happened to the tokens."""


class CallMarks:
    """The marks of a trajectory's model calls, in the order of the timeline."""

    def __init__(self) -> None:
        self._weights: int | None = None

    def of(self, spans: Sequence[Span]) -> tuple[str, ...]:
        """Return the marks of the next model call.

        Args:
            spans: its spans, the outermost first.
        """
        broken = (span.attributes for span in spans if semconv.BREAK_TOKEN in span.attributes)
        return (*self._changed_weights(spans), *map(_in_words, islice(broken, 1)))

    def _changed_weights(self, spans: Sequence[Span]) -> Iterator[str]:
        known = [version for span in spans if (version := _weights_of(span.attributes))]
        if not known:
            return
        before, (first, last) = self._weights, known[0]
        self._weights = last
        if before is not None and before != first:
            yield f"weights {before} → {first}"
        if first != last:
            # The call was interrupted after these numbers of tokens, and went on with other weights.
            stops = [each for span in spans for each in span.events if each.name == semconv.INTERRUPTION]
            places = [f"{each.attributes.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS, '?')}" for each in stops]
            where = f", after {' and '.join(places)} tokens of it" if places else ""
            yield f"weights {first} → {last} within this answer{where}"


def _weights_of(attributes: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the first and the last version of the weights that made an answer."""
    given = [attributes.get(name) for name in (semconv.POLICY_VERSION_MIN, semconv.POLICY_VERSION_MAX)]
    known = [version for version in given if isinstance(version, int)]
    return (known[0], known[-1]) if known else None


def _in_words(broken: Mapping[str, Any]) -> str:
    """Return one line on the tokens of the previous context that the prompt does not repeat."""
    first, removed = broken[semconv.BREAK_TOKEN], broken.get(semconv.BREAK_REMOVED, 0)
    added, kind = broken.get(semconv.BREAK_ADDED), str(broken.get(semconv.BREAK_KIND, "edited"))
    if not removed:
        said = f"{added or 0:,} tokens were added before token {first:,} of the previous context"
    else:
        named = f"token {first:,}" if removed == 1 else f"tokens {first:,}–{first + removed - 1:,}"
        verb = _SAID.get(kind, _SAID["edited"])
        verb = verb.replace("were", "was", 1) if removed == 1 else verb
        said = f"{named} of the previous context {verb}"
        if added is not None and (added or kind != "cut"):
            said += f"; now {added:,} token{'' if added == 1 else 's'}"
    was, became = broken.get(semconv.BREAK_WAS), broken.get(semconv.BREAK_BECAME)
    if was is None and became is None:
        return said
    return f"{said}: “{was or ''}” → “{became or ''}”" if became else f"{said}: “{was or ''}”"
