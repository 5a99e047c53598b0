"""Rewrite one span: add decoded text, replace repeated content by references."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import orjson

from otel_rollout.base import semconv
from otel_rollout.base.bounded import BoundedDict
from otel_rollout.otlp.messages import Shared
from otel_rollout.otlp.span import Span
from otel_rollout.turns import context_diff, prefix_break
from otel_rollout.turns.context_diff import TokenTurn, Turns, prompt_of
from otel_rollout.turns.detokenizer import Detokenizer

_MIN_SHARED_TOKENS: Final = 16
"""Minimum length of a shared prompt prefix, in tokens, to be replaced by a reference."""
_MIN_IMAGE_CHARACTERS: Final = 1024
"""Minimum length of an image's data URL to be replaced by a reference."""
_MAX_DEPTH: Final = 6
"""Levels of input and output that are searched for token ids, messages and images."""
_MAX_TEXTS: Final = 64
"""Maximum answers per trace, the latest ones, whose text is remembered for roots that show it."""
_TRACE_BYTES: Final = 256
"""Bytes of memory counted for a trace, and for each of its images."""
_ANSWERS: Final = ("response_ids", "token_ids")
_LOGPROBS: Final = ("response_logprobs", "log_probs", "logprobs")


class TraceMemory:
    """The turns, images and answers of a trace that later spans may repeat.

    Attributes:
        tokens: tokenizer name → turns of token ids.
        messages: the turns of messages.
        images: digest of an image → end and id of the first span with the image.
        texts: span id → decoded text of the span's answer.
        size: bytes of memory, as last measured.
    """

    def __init__(self) -> None:
        self.tokens: dict[str, Turns] = {}
        self.messages = Turns(context_diff.MESSAGE_BYTES)
        self.images: dict[str, tuple[int, str]] = {}
        self.texts: BoundedDict[str, str] = BoundedDict(_MAX_TEXTS)
        self.size = 0

    def measure(self) -> None:
        """Measure the memory, and set ``size``."""
        self.size = _TRACE_BYTES * (1 + len(self.images))
        for turns in (self.messages, *self.tokens.values()):
            self.size += turns.size
        if self.texts:
            self.size += sum(map(len, self.texts.values()))


class Contents(NamedTuple):
    """Which contents to look for in the inputs and outputs of a line."""

    tokens: bool
    images: bool


class SpanRewriter:
    """Rewrites a span.

    Args:
        span: the span, which :meth:`rewrite` changes.
        trace: the memory of the span's trace.
        turns: which turns are exported without their shared prefix (``tokens``, ``all`` or none: ``whole``).
        contents: which contents to look for.
        detokenizer: decodes the span's token ids; None if there is none.
        answer: text of the other span's answer that the span shows, if the memory has forgotten it.
    """

    def __init__(
        self,
        span: Span,
        trace: TraceMemory,
        turns: str,
        contents: Contents,
        detokenizer: Detokenizer | None = None,
        answer: str | None = None,
    ) -> None:
        self._span = span
        self._trace = trace
        self._turns = turns
        self._contents = contents
        self._detokenizer = detokenizer
        self._answer = answer
        self._id = span.span_id
        self._start, self._end = span.start_ns, span.end_ns
        # Most spans of tools and of the loop around the calls have nothing to rewrite: their JSON stays text.
        attributes = span.attributes
        self._is_call = (
            attributes.get(semconv.SPAN_KIND) == semconv.KIND_LLM
            or semconv.GEN_AI_OPERATION_NAME in attributes
        )
        # A dump, and a line that was delivered before, may hold only the new messages of a turn.
        is_told = semconv.TURN_CONTINUES in attributes or semconv.DUMP_FORMAT in span.resource.attributes
        may_be_turn = bool(trace.messages.branches) or self._is_call
        self._may_be_turn = turns != "whole" and may_be_turn and not is_told
        # Such a line's earlier prompts are references, which nothing can be compared with: its break is told.
        self._may_break = turns != "whole" and self._is_call and semconv.BREAK_OF not in attributes
        has_more = contents.tokens or contents.images or semconv.TEXT_OF in attributes
        self._input = self._json(semconv.INPUT_VALUE) if has_more or self._may_be_turn else None
        self._output = self._json(semconv.OUTPUT_VALUE) if has_more else None
        self._changed = False
        """Whether the input or output has changed."""
        self._broken: dict[str, Any] | None = None
        """Attributes that describe the prefix break; None without a break."""

    def rewrite(self) -> bool:
        """Rewrite the span; return False if it stays as recorded."""
        turn = self._rewrite_tokens() if self._contents.tokens else None
        conversation = self._conversation()
        # The span's attributes describe the turn of messages. The turn of token ids is told by the reference.
        if conversation is not None:
            turn = self._rewrite_messages(conversation)
        if self._contents.images and self._turns != "whole":
            self._input = self._without_repeated(self._input, _MAX_DEPTH)
            self._output = self._without_repeated(self._output, _MAX_DEPTH)
        self._show_answer_of_another()
        if self._changed:
            self._put(semconv.INPUT_VALUE, self._input)
            self._put(semconv.OUTPUT_VALUE, self._output)
        noted = {**(self._broken or {}), **(_attributes_of(turn) if turn is not None else {})}
        if noted:
            self._span.replace(noted, noted)
        return self._changed or bool(noted)

    def _json(self, key: str) -> Any:
        mime_type = semconv.INPUT_MIME_TYPE if key == semconv.INPUT_VALUE else semconv.OUTPUT_MIME_TYPE
        if self._span.text(mime_type) != semconv.JSON_MIME_TYPE:
            return None
        try:
            return orjson.loads(self._span.text(key) or "")
        except ValueError:
            return None

    def _put(self, key: str, value: Any) -> None:
        if value is not None:
            self._span.set_text(key, orjson.dumps(value).decode())

    # --- token ids ----------------------------------------------------------------------------------------

    def _rewrite_tokens(self) -> _Turn | None:
        first, second = _ANSWERS
        answers = [(holder, key) for key in _ANSWERS for holder in _holders(self._output, key)]
        # An object with the same ids under both keys is one answer.
        answers = [each for each in answers if each[1] == first or each[0].get(first) != each[0][second]]
        prompts = [*_holders(self._output, "prompt_ids"), *_holders(self._input, "prompt_ids")]
        if not (answers or prompts):
            return None
        tokenizer = str(self._span.text(semconv.TOKENIZER))
        turns = self._trace.tokens.setdefault(tokenizer, Turns(context_diff.TOKEN_BYTES, _MIN_SHARED_TOKENS))
        if len(answers) > 1:  # several answers are no turn: a later turn continues at most one of them
            for holder, key in answers:
                call = TokenTurn(holder.get("prompt_ids", []), holder[key])
                self._remember(call, turns, can_be_continued=False)
                self._show(holder, call)
            return None
        holder, key = answers[0] if answers else ({}, "")
        call = TokenTurn(prompt_of(prompts), holder.get(key, []))
        shared = self._shared_prefix(call, turns, holder)
        if self._may_break and call.encoded_prompt:
            self._broken = prefix_break.attributes_of(
                turns, self._id, call.encoded_prompt, self._start, self._detokenizer
            )
        self._remember(call, turns, can_be_continued=bool(answers and prompts))
        if answers:
            self._show(holder, call, shared.length if shared else 0)
        if shared is None:
            return None
        for prompt in prompts:
            prompt["prompt_ids"] = _reference(shared, call.prompt)
        self._changed = True
        return _Turn(shared, len(call.prompt))

    def _shared_prefix(self, call: TokenTurn, turns: Turns, holder: dict[str, Any]) -> Shared | None:
        # An agent loop may return the whole conversation: that is no turn, and is exported in full.
        is_summary = (
            "prompt_ids" in holder
            and call.encoded is not None
            and turns.knows(self._id, call.encoded, self._end)
        )
        if self._turns == "whole" or is_summary or call.encoded_prompt is None:
            return None
        return turns.shared(self._id, call.encoded_prompt, self._start)

    def _remember(self, call: TokenTurn, turns: Turns, can_be_continued: bool) -> None:
        if call.encoded:
            asked = len(call.prompt)
            call.branch = turns.add(self._id, call.encoded, self._end, can_be_continued, asked)

    def _show(self, holder: dict[str, Any], call: TokenTurn, start: int = 0) -> None:
        """Add a call's decoded text to ``holder``; the prompt's text from ``start`` on."""
        detokenizer = self._detokenizer
        if detokenizer is None or not call.ids:
            return
        call.decode(start, detokenizer)
        if call.prompt:
            holder["prompt_text"] = call.prompt_text(start, detokenizer)
            if start:
                holder["prompt_text_begins_at_token"] = start
        if call.has_answer:
            answer = call.answer_text(detokenizer)
            holder["response_text"] = answer
            self._trace.texts[self._id] = answer
        segments = call.segments(holder.get("response_mask"), detokenizer)
        if segments:
            holder["response_segments"] = segments
        _summarize_logprobs(holder)
        self._changed = True

    # --- messages, images, and the answer on the root -----------------------------------------------------

    def _conversation(self) -> dict[str, Any] | None:
        """Return the object with the span's messages; None if they stay as recorded."""
        if not self._may_be_turn:
            return None
        for holder in _holders(self._input, "messages"):
            if _is_conversation(holder["messages"]):
                return holder
        return None

    def _rewrite_messages(self, holder: dict[str, Any]) -> _Turn | None:
        messages = holder["messages"]
        encoded = context_diff.messages(messages)
        shared = self._trace.messages.shared(self._id, encoded, self._start)
        if self._is_call:  # no turn continues another span
            self._trace.messages.add(self._id, encoded, self._end)
        if shared is None:
            return None
        if self._turns == "all":
            holder["messages"] = messages[shared.length :]
            self._changed = True
        return _Turn(shared, len(messages))

    def _without_repeated(self, value: Any, depth: int) -> Any:
        """Return ``value`` with images of earlier spans replaced by references."""
        if depth and isinstance(value, dict):
            return {key: self._without_repeated(entry, depth - 1) for key, entry in value.items()}
        if depth and isinstance(value, list):
            if value and isinstance(value[0], (int, float)):
                return value
            return [self._without_repeated(entry, depth - 1) for entry in value]
        if not isinstance(value, str) or len(value) < _MIN_IMAGE_CHARACTERS or not value.startswith("data:"):
            return value
        type_, separator, content = value[5:].partition(";base64,")
        if not separator:
            return value
        digest = hashlib.sha256(content.encode()).hexdigest()
        end, owner = min(self._trace.images.get(digest, (self._end, self._id)), (self._end, self._id))
        self._trace.images[digest] = end, owner
        if end >= self._start:  # lines are read in any order: refer only to a span that ended before
            return value
        self._changed = True
        size = len(content) * 3 // 4
        return f"<{type_} of {size} bytes, sha256 of its base64 {digest[:16]}, is in span {owner}>"

    def _show_answer_of_another(self) -> None:
        """Add to the output the answer text of another span, if this span names one."""
        other = self._span.text(semconv.TEXT_OF)
        if other is None:
            return
        self._span.replace({semconv.TEXT_OF}, {})
        self._changed = True
        answer = self._trace.texts.get(other, self._answer)
        if answer is not None:
            output = self._output if isinstance(self._output, dict) else {}
            self._output = {**output, "response_text": answer}
            _summarize_logprobs(self._output)


class _Turn(NamedTuple):
    """A turn of tokens or messages: the shared prefix, and the whole length."""

    shared: Shared
    length: int


def _attributes_of(turn: _Turn) -> dict[str, Any]:
    return {
        semconv.TURN_CONTINUES: turn.shared.turn,
        semconv.TURN_SHARED: turn.shared.length,
        semconv.TURN_LENGTH: turn.length,
    }


def _reference(shared: Shared, prompt: list[int]) -> dict[str, Any]:
    """Return the reference that replaces a prompt's ids."""
    return {
        "continues": shared.turn,
        "shared": shared.length,
        "new": prompt[shared.length :],
        "length": len(prompt),
    }


def _holders(value: Any, key: str, depth: int = _MAX_DEPTH) -> Iterator[dict[str, Any]]:
    """Yield the objects in ``value`` that have a list under ``key``."""
    if isinstance(value, dict):
        if isinstance(value.get(key), list):
            yield value
        if depth:
            for entry in value.values():
                yield from _holders(entry, key, depth - 1)
    elif isinstance(value, list) and depth and value and isinstance(value[0], (dict, list)):
        for entry in value:
            yield from _holders(entry, key, depth - 1)


def _is_conversation(value: list[Any]) -> bool:
    for message in value:
        if not isinstance(message, dict) or "role" not in message:
            return False
    return bool(value)


def _summarize_logprobs(output: dict[str, Any]) -> None:
    for name in _LOGPROBS:
        summary = _summary(output.get(name))
        if summary is not None:
            output[name] = summary


def _summary(values: Any) -> dict[str, float] | None:
    """Return count, mean and minimum of log probabilities; None for other values.

    A line has null in place of NaN; these values are counted as missing.
    """
    if not isinstance(values, list) or not set(map(type, values)) <= {int, float, type(None)}:
        return None
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    summary = {"count": len(numbers), "mean": math.fsum(numbers) / len(numbers), "least": min(numbers)}
    missing = len(values) - len(numbers)
    return {**summary, "missing": missing} if missing else summary
