"""Say of a model call what a trainer must know: changed weights, and a prompt that breaks the prefix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.look.conversation.model_call import ModelCall
from otel_rollout.otlp.span import Span
from otel_rollout.turns import context_diff, prefix_break

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
        self._contexts = context_diff.Turns(context_diff.TOKEN_BYTES)
        self._weights: int | None = None

    def of(self, call: ModelCall, spans: Sequence[Span]) -> tuple[str, ...]:
        """Return the marks of the next model call.

        Args:
            call: the call, with the tokens of its prompt and reply.
            spans: its spans, the outermost first.
        """
        broken = _recorded(spans) or self._computed(call, spans[0])
        return (*self._changed_weights(spans), *([_in_words(broken)] if broken else []))

    def _changed_weights(self, spans: Sequence[Span]) -> Iterator[str]:
        known = [version for span in spans if (version := _weights_of(span.attributes))]
        if not known:
            return
        before, (first, last) = self._weights, known[0]
        self._weights = last
        if before is not None and before != first:
            yield f"weights {before} → {first}"
        if first != last:
            # It was interrupted after so many tokens, and went on with the other weights.
            stops = [each for span in spans for each in span.events if each.name == semconv.INTERRUPTION]
            places = [f"{each.attributes.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS, '?')}" for each in stops]
            where = f", after {' and '.join(places)} tokens of it" if places else ""
            yield f"weights {first} → {last} within this answer{where}"

    def _computed(self, call: ModelCall, span: Span) -> Mapping[str, Any] | None:
        """Return the attributes that the forwarder would add to the recorded call."""
        if call.request.shared_ids or not call.request.prompt_ids:
            return None
        prompt = context_diff.tokens(list(call.request.prompt_ids))
        whole = context_diff.tokens(list(call.token_ids))
        if prompt is None or whole is None:
            return None
        found = prefix_break.attributes_of(self._contexts, span.span_id, prompt, span.start_ns, None)
        has_reply = bool(call.reply.token_ids)
        asked = len(call.request.prompt_ids)
        self._contexts.add(span.span_id, whole, span.end_ns, has_reply, asked)
        return found


def _weights_of(attributes: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the first and the last version of the weights that made an answer."""
    given = [attributes.get(name) for name in (semconv.POLICY_VERSION_MIN, semconv.POLICY_VERSION_MAX)]
    known = [version for version in given if isinstance(version, int)]
    return (known[0], known[-1]) if known else None


def _recorded(spans: Sequence[Span]) -> Mapping[str, Any] | None:
    found = (span.attributes for span in spans)
    return next((attributes for attributes in found if semconv.BREAK_TOKEN in attributes), None)


def _in_words(broken: Mapping[str, Any]) -> str:
    """Say in one line which tokens of the turn before the prompt does not repeat."""
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
