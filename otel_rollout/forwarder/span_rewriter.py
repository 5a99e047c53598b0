"""A span as an exporter is told it: the text of its token ids, and what is new since its trace began."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import orjson

from otel_rollout.base import semconv
from otel_rollout.forwarder import context_diff, turn_text
from otel_rollout.forwarder.context_diff import Branch, Shared, Turns
from otel_rollout.forwarder.detokenizer import Decoder
from otel_rollout.forwarder.tokenizer_cache import Decoders

_LEAST_TOKENS: Final = 16
"""Tokens at the beginning of a prompt that are worth being told by reference."""
_LEAST_IMAGE: Final = 1024
_DEPTH: Final = 6
"""Levels at which token ids, messages and images are looked for."""
_MAX_TEXTS: Final = 64
"""Answers of a trace whose text is remembered for roots that show it; of further ones the latest."""
_ANSWERS: Final = ("response_ids", "token_ids")
_LOGPROBS: Final = ("response_logprobs", "log_probs", "logprobs")


class Trace:
    """What is remembered of a trace."""

    def __init__(self) -> None:
        self.tokens: dict[str, Turns] = {}
        self.messages = Turns(context_diff.MESSAGE_BYTES)
        self.images: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        """Spans whose answers were decoded, and the text of these."""
        self.size = 0

    def remember_text(self, span_id: str, text: str) -> None:
        """Keep the text of a span's answer for the root that shows it."""
        self.texts.pop(span_id, None)
        self.texts[span_id] = text
        if len(self.texts) > _MAX_TEXTS:
            del self.texts[next(iter(self.texts))]

    def measure(self) -> None:
        """Note what it takes."""
        remembered = [self.messages, *self.tokens.values()]
        pieces = sum(len(p.text) for t in remembered for b in t.branches for p in b.pieces)
        texts = sum(map(len, self.texts.values()))
        self.size = sum(t.size for t in remembered) + pieces + texts + 256 * (1 + len(self.images))


class Holds(NamedTuple):
    """What there may be in the inputs and outputs of a line; what is not there need not be looked for."""

    tokens: bool
    images: bool


class Call:
    """A span, and what is told of it in another way than it was recorded.

    Args:
        span: as it is on its line; is changed.
        trace: what is remembered of its trace.
        told: which turns are told by what is new in them.
        holds: what there may be in the span's input and output.
        decoders: for token ids.
        recorded_text: gives the text of another span's answer, by its id, from the line of that span.
    """

    def __init__(
        self,
        span: dict[str, Any],
        trace: Trace,
        told: str,
        holds: Holds,
        decoders: Decoders,
        recorded_text: Callable[[str], str | None],
    ) -> None:
        self._span = span
        self._trace = trace
        self._told = told
        self._holds = holds
        self._decoders = decoders
        self._recorded_text = recorded_text
        self._id = str(span["spanId"])
        self._began, self._ended = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        self._attributes = {entry["key"]: entry["value"] for entry in span.get("attributes", ())}
        self._input = self._json(semconv.INPUT_VALUE)
        self._output = self._json(semconv.OUTPUT_VALUE)
        self._changed = False

    def told(self) -> bool:
        """Change the span; False if it is told as it was recorded."""
        name = self._attributes.get(semconv.TOKENIZER, {}).get("stringValue")
        decoder = self._decoders.get(name, self._ended / 1e9) if name else None
        turn = self._tell_tokens(str(name), decoder) if self._holds.tokens else None
        conversation = self._conversation()
        if conversation is not None:  # ids have their reference in themselves
            turn = self._tell_messages(conversation)
        if turn is not None:
            self._note_turn(turn)
        if self._holds.images and self._told != "whole":
            self._input = self._without_repeated(self._input, _DEPTH)
            self._output = self._without_repeated(self._output, _DEPTH)
        self._show_text_of_another()
        if self._changed:
            self._put(semconv.INPUT_VALUE, self._input)
            self._put(semconv.OUTPUT_VALUE, self._output)
        return self._changed

    def _json(self, key: str) -> Any:
        mime_type = semconv.INPUT_MIME_TYPE if key == semconv.INPUT_VALUE else semconv.OUTPUT_MIME_TYPE
        if self._attributes.get(mime_type, {}).get("stringValue") != semconv.JSON_MIME_TYPE:
            return None
        try:
            return orjson.loads(self._attributes[key]["stringValue"])
        except (LookupError, ValueError):
            return None

    def _put(self, key: str, value: Any) -> None:
        if value is not None:
            self._attributes[key]["stringValue"] = orjson.dumps(value).decode()

    def _note(self, key: str, value: int | str) -> None:
        held = {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}
        others = [entry for entry in self._span["attributes"] if entry["key"] != key]
        self._span["attributes"] = [*others, {"key": key, "value": held}]
        self._changed = True

    # --- token ids ----------------------------------------------------------------------------------------

    def _tell_tokens(self, tokenizer: str, decoder: Decoder | None) -> _Turn | None:
        answers = [(holder, key) for key in _ANSWERS for holder in _holders(self._output, key)]
        prompts = [*_holders(self._output, "prompt_ids"), *_holders(self._input, "prompt_ids")]
        if not (answers or prompts):
            return None
        known = self._trace.tokens.setdefault(tokenizer, Turns(context_diff.TOKEN_BYTES, _LEAST_TOKENS))
        if len(answers) > 1:  # no turn: the next one continues with one of them, or with none
            for holder, key in answers:
                call = _Tokens(holder.get("prompt_ids", []), holder[key])
                self._follow(call, known, ended=context_diff.NEVER)
                self._show(holder, call, decoder)
            return None
        holder, key = answers[0] if answers else ({}, "")
        call = _Tokens(_prompt_of(prompts), holder.get(key, []))
        # A conversation as an agent loop returns it is nobody's turn, and told in full.
        is_summary = "prompt_ids" in holder and call.encoded is not None and known.knows(call.encoded)
        shared = None
        if self._told != "whole" and not is_summary and call.asked is not None:
            shared = known.shared(self._id, call.asked, self._began)
        self._follow(call, known, self._ended if answers and prompts else context_diff.NEVER)
        if answers:
            self._show(holder, call, decoder, shared.length if shared else 0)
        if shared is None:
            return None
        for prompt in prompts:
            prompt["prompt_ids"] = _told_by(shared, call.prompt)
        self._changed = True
        return _Turn(shared, len(call.prompt))

    def _follow(self, call: _Tokens, known: Turns, ended: int) -> None:
        if call.encoded:
            call.branch = known.add(self._id, call.encoded, ended)

    def _show(self, holder: dict[str, Any], call: _Tokens, decoder: Decoder | None, begin: int = 0) -> None:
        """Put the text of a call's tokens beside them, that of the prompt from ``begin`` on."""
        if decoder is None or not call.ids:
            return
        if call.branch is not None:
            turn_text.read(call.branch, call.ids, [begin, len(call.prompt)], decoder)
        if call.prompt:
            holder["prompt_text"] = call.text(begin, len(call.prompt), decoder) + call.rest_of_prompt
            if begin:
                holder["prompt_text_begins_at_token"] = begin
        if call.has_answer:
            answer = call.text(len(call.prompt), len(call.ids), decoder) + call.rest_of_answer
            holder["response_text"] = answer
            self._trace.remember_text(self._id, answer)
        segments = call.segments(holder.get("response_mask"), decoder)
        if segments:
            holder["response_segments"] = segments
        _sum_up_logprobs(holder)
        self._changed = True

    def _note_turn(self, turn: _Turn) -> None:
        self._note(semconv.TURN_CONTINUES, turn.shared.turn)
        self._note(semconv.TURN_SHARED, turn.shared.length)
        self._note(semconv.TURN_LENGTH, turn.length)

    # --- messages, images, and the answer on the root -----------------------------------------------------

    def _conversation(self) -> dict[str, Any] | None:
        """Return what holds the span's messages; None without any, and where all is told whole."""
        if self._told == "whole":
            return None
        return next((h for h in _holders(self._input, "messages") if _is_conversation(h["messages"])), None)

    def _tell_messages(self, holder: dict[str, Any]) -> _Turn | None:
        told = holder["messages"]
        encoded = context_diff.messages(told)
        shared = self._trace.messages.shared(self._id, encoded, self._began)
        self._trace.messages.add(
            self._id, encoded, self._ended if self._is_model_call() else context_diff.NEVER
        )
        if shared is None:
            return None
        if self._told == "all":
            holder["messages"] = told[shared.length :]
        return _Turn(shared, len(told))

    def _is_model_call(self) -> bool:
        kind = self._attributes.get(semconv.SPAN_KIND, {}).get("stringValue")
        return kind == semconv.KIND_LLM or semconv.GEN_AI_OPERATION_NAME in self._attributes

    def _without_repeated(self, value: Any, depth: int) -> Any:
        """``value`` with the images that another span of the trace has had replaced by what they are."""
        if depth and isinstance(value, dict):
            return {key: self._without_repeated(held, depth - 1) for key, held in value.items()}
        if depth and isinstance(value, list):
            if value and isinstance(value[0], (int, float)):
                return value
            return [self._without_repeated(held, depth - 1) for held in value]
        if not isinstance(value, str) or len(value) < _LEAST_IMAGE or not value.startswith("data:"):
            return value
        kind, separator, content = value[5:].partition(";base64,")
        if not separator:
            return value
        digest = hashlib.sha256(content.encode()).hexdigest()
        holder = self._trace.images.setdefault(digest, self._id)
        if holder == self._id:
            return value
        self._changed = True
        size = len(content) * 3 // 4
        return f"<{kind} of {size} bytes, sha256 of its base64 {digest[:16]}, is in span {holder}>"

    def _show_text_of_another(self) -> None:
        other = self._attributes.get(semconv.TEXT_OF, {}).get("stringValue")
        if other is None:
            return
        entries = self._span["attributes"]
        self._span["attributes"] = [entry for entry in entries if entry["key"] != semconv.TEXT_OF]
        self._changed = True
        answer = self._trace.texts.get(other)
        if answer is None:
            answer = self._recorded_text(other)
        if answer is not None:
            held = self._output if isinstance(self._output, dict) else {}
            self._output = {**held, "response_text": answer}
            _sum_up_logprobs(self._output)


class _Turn(NamedTuple):
    """What a turn shares with an earlier one, and how many tokens or messages it has in all."""

    shared: Shared
    length: int


class _Tokens:
    """The prompt and the answer of a model call, or of a whole conversation. Either may have been cut.

    Attributes:
        asked: the prompt as bytes; None where it was cut, or is no list of token ids.
        encoded: prompt and answer as bytes; None where either is none.
        has_answer: whether the answer is a list of token ids, maybe a cut or an empty one.
        branch: that of the trace which begins with them; None where nobody continues them.
    """

    def __init__(self, prompt: Any, answer: list[Any]) -> None:
        self.prompt, self.rest_of_prompt, self.asked = _ids(prompt)
        self.answer, self.rest_of_answer, answered = _ids(answer)
        self.has_answer = bool(self.answer or self.rest_of_answer) or answered is not None
        self.ids = [*self.prompt, *self.answer]
        self.encoded = None if self.asked is None or answered is None else self.asked + answered
        self.branch: Branch | None = None

    def text(self, begin: int, end: int, decoder: Decoder) -> str:
        """The text of some of its tokens, which lie in the prompt or in the answer."""
        if self.branch is not None:
            return turn_text.text(self.branch, self.ids, begin, end, decoder)
        if self.asked is not None:
            return decoder.part(self.ids, begin, end)
        start = len(self.prompt)  # what is between prompt and answer is not known
        if end <= start:
            return decoder.part(self.prompt, begin, end)
        return decoder.part(self.answer, begin - start, end - start)

    def segments(self, mask: Any, decoder: Decoder) -> list[dict[str, Any]]:
        """What the model said, and what the environment did, one after the other; empty without a mask."""
        if not isinstance(mask, list) or len(mask) != len(self.answer) or not mask:
            return []
        begins = [0, *(i for i in range(1, len(mask)) if bool(mask[i]) != bool(mask[i - 1])), len(mask)]
        start = len(self.prompt)
        return [
            {
                "role": "model" if mask[begin] else "environment",
                "tokens": end - begin,
                "text": self.text(start + begin, start + end, decoder),
            }
            for begin, end in itertools.pairwise(begins)
        ]


def _prompt_of(holders: Sequence[dict[str, Any]]) -> Any:
    """The prompt of a call that holds it in several places; None where these do not agree."""
    prompts = [holder["prompt_ids"] for holder in holders]
    if len({context_diff.tokens(prompt) for prompt in prompts}) > 1:
        return None
    return prompts[0] if prompts else []


def _ids(value: Any) -> tuple[list[int], str, bytes | None]:
    """Token ids, what stands for those that were left out when they were recorded, and the ids as bytes.

    The bytes are those of all of them: None where some were left out. Of what is no list of token ids (it has
    placeholders of images, say, or is nested) there are none.
    """
    if not isinstance(value, list):
        return [], "", None
    cut = value[-1] if value and isinstance(value[-1], str) and value[-1].startswith("… (") else ""
    ids = value[:-1] if cut else value
    encoded = context_diff.tokens(ids)
    if encoded is None:
        return [], "", None
    return ids, cut, None if cut else encoded


def _told_by(shared: Shared, prompt: list[int]) -> dict[str, Any]:
    return {
        "continues": shared.turn,
        "shared": shared.length,
        "new": prompt[shared.length :],
        "length": len(prompt),
    }


def _holders(value: Any, key: str, depth: int = _DEPTH) -> Iterator[dict[str, Any]]:
    """The objects in ``value`` that have a list under ``key``."""
    if isinstance(value, dict):
        if isinstance(value.get(key), list):
            yield value
        if depth:
            for held in value.values():
                yield from _holders(held, key, depth - 1)
    elif isinstance(value, list) and depth and value and isinstance(value[0], (dict, list)):
        for held in value:
            yield from _holders(held, key, depth - 1)


def _is_conversation(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(said, dict) and "role" in said for said in value)


def _sum_up_logprobs(output: dict[str, Any]) -> None:
    for name in _LOGPROBS:
        summary = _summary(output.get(name))
        if summary is not None:
            output[name] = summary


def _summary(values: Any) -> dict[str, float] | None:
    """Count, mean and least of log probabilities in a line; NaN is null there, and counted as missing."""
    if not isinstance(values, list) or not set(map(type, values)) <= {int, float, type(None)}:
        return None
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    summary = {"count": len(numbers), "mean": math.fsum(numbers) / len(numbers), "least": min(numbers)}
    missing = len(values) - len(numbers)
    return {**summary, "missing": missing} if missing else summary
