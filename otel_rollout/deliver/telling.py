"""A span as an exporter is told it: the text of its token ids, and what is new since its trace began."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import orjson

from otel_rollout import semconv
from otel_rollout.deliver.decoders import Decoders
from otel_rollout.tokens import reading, turns
from otel_rollout.tokens.decoding import Decoder
from otel_rollout.tokens.turns import Branch, Shared, Turns

_LEAST_TOKENS: Final = 16
"""Tokens at the beginning of a prompt that are worth being told by reference."""
_LEAST_IMAGE: Final = 1024
_DEPTH: Final = 6
"""Levels at which token ids, messages and images are looked for."""
_ANSWERS: Final = ("response_ids", "token_ids")
_LOGPROBS: Final = ("response_logprobs", "log_probs", "logprobs")


class Trace:
    """What is remembered of a trace."""

    def __init__(self) -> None:
        self.tokens: dict[str, Turns] = {}
        self.messages = Turns(turns.MESSAGE_BYTES)
        self.images: dict[str, str] = {}
        self.text: tuple[str, str] = ("", "")
        """The span whose answer was decoded last, and its text."""
        self.size = 0

    def measure(self) -> None:
        """Note what it takes."""
        remembered = [self.messages, *self.tokens.values()]
        texts = sum(len(p.text) for t in remembered for b in t.branches for p in b.pieces)
        self.size = sum(t.size for t in remembered) + texts + len(self.text[1]) + 256 * (1 + len(self.images))


class Holds(NamedTuple):
    """What there may be in the inputs and outputs of a line; what is not there need not be looked for."""

    tokens: bool
    images: bool


class Call:
    """A span, and what is told of it in another way than it was recorded."""

    def __init__(
        self, span: dict[str, Any], trace: Trace, told: str, holds: Holds, decoders: Decoders
    ) -> None:
        self._span = span
        self._trace = trace
        self._told = told
        self._holds = holds
        self._decoders = decoders
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
        if self._holds.tokens:
            self._tell_tokens(str(name), decoder)
        self._tell_messages()
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
        self._span["attributes"].append({"key": key, "value": held})
        self._changed = True

    # --- token ids ----------------------------------------------------------------------------------------

    def _tell_tokens(self, tokenizer: str, decoder: Decoder | None) -> None:
        answers = [(holder, key) for key in _ANSWERS for holder in _holders(self._output, key)]
        prompts = [*_holders(self._output, "prompt_ids"), *_holders(self._input, "prompt_ids")]
        if not (answers or prompts):
            return
        known = self._trace.tokens.setdefault(tokenizer, Turns(turns.TOKEN_BYTES, _LEAST_TOKENS))
        if len(answers) > 1:  # no turn: the next one continues with one of them, or with none
            for holder, key in answers:
                call = _Tokens(holder.get("prompt_ids", []), holder[key])
                self._follow(call, known, ended=turns.NEVER)
                self._show(holder, call, decoder)
            return
        holder, key = answers[0] if answers else ({}, "")
        call = _Tokens(prompts[0]["prompt_ids"] if prompts else [], holder.get(key, []))
        # A conversation as an agent loop returns it is nobody's turn, and told in full.
        is_summary = "prompt_ids" in holder and call.encoded is not None and known.knows(call.encoded)
        shared = None
        if self._told != "whole" and not is_summary and call.encoded is not None:
            shared = known.shared(self._id, call.encoded[: len(call.prompt) * turns.TOKEN_BYTES], self._began)
        self._follow(call, known, self._ended if answers else turns.NEVER)
        if answers:
            self._show(holder, call, decoder, shared.length if shared else 0)
        if shared is not None:
            for prompt in prompts:
                if prompt["prompt_ids"] == call.prompt:
                    prompt["prompt_ids"] = _told_by(shared, call.prompt)
            self._note_turn(shared, len(call.prompt))

    def _follow(self, call: _Tokens, known: Turns, ended: int) -> None:
        if call.encoded:
            call.branch = known.add(self._id, call.encoded, ended)

    def _show(self, holder: dict[str, Any], call: _Tokens, decoder: Decoder | None, begin: int = 0) -> None:
        """Put the text of a call's tokens beside them, that of the prompt from ``begin`` on."""
        if decoder is None or not call.ids:
            return
        if call.branch is not None:
            reading.read(call.branch, call.ids, [begin, len(call.prompt)], decoder)
        if call.prompt:
            holder["prompt_text"] = call.text(begin, len(call.prompt), decoder) + call.rest_of_prompt
            if begin:
                holder["prompt_text_begins_at_token"] = begin
        answer = call.text(len(call.prompt), len(call.ids), decoder) + call.rest_of_answer
        holder["response_text"] = answer
        segments = call.segments(holder.get("response_mask"), decoder)
        if segments:
            holder["response_segments"] = segments
        _sum_up_logprobs(holder)
        self._trace.text = (self._id, answer)
        self._changed = True

    def _note_turn(self, shared: Shared, length: int) -> None:
        self._note(semconv.TURN_CONTINUES, shared.turn)
        self._note(semconv.TURN_SHARED, shared.length)
        self._note(semconv.TURN_LENGTH, length)

    # --- messages, images, and the answer on the root -----------------------------------------------------

    def _tell_messages(self) -> None:
        holder = next((h for h in _holders(self._input, "messages") if _is_conversation(h["messages"])), None)
        if holder is None or self._told == "whole":
            return
        told = holder["messages"]
        encoded = turns.messages(told)
        shared = self._trace.messages.shared(self._id, encoded, self._began)
        self._trace.messages.add(self._id, encoded, self._ended if self._is_model_call() else turns.NEVER)
        if shared is not None:
            self._note_turn(shared, len(told))
            if self._told == "all":
                holder["messages"] = told[shared.length :]

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
        decoded, answer = self._trace.text
        if decoded == other:
            held = self._output if isinstance(self._output, dict) else {}
            self._output = {**held, "response_text": answer}
            _sum_up_logprobs(self._output)


class _Tokens:
    """The prompt and the answer of a model call, or of a whole conversation. Either may have been cut."""

    def __init__(self, prompt: list[Any], answer: list[Any]) -> None:
        self.prompt, self.rest_of_prompt, encoded_prompt = _ids(prompt)
        self.answer, self.rest_of_answer, encoded_answer = _ids(answer)
        self.ids = [*self.prompt, *self.answer]
        is_whole = not self.rest_of_prompt and not self.rest_of_answer
        self.encoded = encoded_prompt + encoded_answer if is_whole else None
        self.branch: Branch | None = None

    def text(self, begin: int, end: int, decoder: Decoder) -> str:
        """The text of some of its tokens."""
        if self.branch is not None:
            return reading.text(self.branch, self.ids, begin, end, decoder)
        return decoder.text(self.ids[begin:end])

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


def _ids(value: list[Any]) -> tuple[list[int], str, bytes]:
    """Token ids, what stands for those that were left out when they were recorded, and the ids as bytes."""
    cut = value[-1] if value and isinstance(value[-1], str) else ""
    ids = value[:-1] if cut else value
    encoded = turns.tokens(ids)
    return ([], "", b"") if encoded is None else (ids, cut, encoded)


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
    """What there is to say of log probabilities in a line."""
    if not isinstance(values, list) or not values or not set(map(type, values)) <= {int, float}:
        return None
    return {"count": len(values), "mean": math.fsum(values) / len(values), "least": min(values)}
