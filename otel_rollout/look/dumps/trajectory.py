"""Describe a trajectory of a dump by its identity, messages and rewards, and find its calls.

A message of the model becomes a model call, whose input is the messages before. A tool that the message asks
for becomes a tool call, with a result from the messages that follow. Facts that the dump lacks are left out,
such as times, token counts, and how a call ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from otel_rollout.base import semconv
from otel_rollout.base.given import scalar
from otel_rollout.look.dumps.values import entries_of
from otel_rollout.otlp.messages import TOOL_ROLES
from otel_rollout.table.json_text import as_json
from otel_rollout.table.rows import integer_in

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Times: TypeAlias = tuple[int, int]
"""Start and end, Unix time in ns."""

MODEL: Final = "assistant"
REWARD: Final = "reward"
GIVEN: Final = "is_given"
"""Key of a message with the model's role that was given to the model, not written by it."""
CALLS_ALONE: Final = "has_calls_alone"
"""Key of a message with the model's role whose tool calls the agent made without a model call."""
PARSED: Final = "is_parsed"
"""Key of a message that was found, itself or its tool calls, by parsing text."""


class RolloutIdentity(NamedTuple):
    """The identity of a trajectory in a dump.

    Attributes:
        step: training step; None if the dump has none.
        sample: dataset row, or a number of the group; None if the dump says that there is none.
        rollout: index in the group; None if the dump says that there is none.
        is_validation: whether it is of a validation.
        group: the dump's own id of the group.
    """

    step: int | str | None
    sample: int | str | None
    rollout: int | str | None = 0
    is_validation: bool = False
    group: str = ""


class ModelTurn(NamedTuple):
    """Facts of a model call beside its messages; None if unknown.

    Attributes:
        read, written, cached: numbers of input, output and cached input tokens.
        model: the model's name.
        reason: why its reply ended.
        times: when it ran.
        error: its error; empty without one.
        is_new_context: whether the call begins a new context, which continues no earlier call.
    """

    read: Any = None
    written: Any = None
    cached: Any = None
    model: Any = None
    reason: Any = None
    times: Times | None = None
    error: str = ""
    is_new_context: bool = False


@dataclass(slots=True)
class DumpedCall:
    """A model call or a tool call, made from messages.

    Attributes:
        name: its name.
        attributes: attributes of its span.
        times: when it ran; None if unknown.
        error: its error; empty without one.
        has_succeeded: whether the dump says that it did not fail.
        is_endless: whether its end is unknown, so that ``times`` only place it among the other calls.
    """

    name: str
    attributes: dict[str, Any]
    times: Times | None = None
    error: str = ""
    is_endless: bool = False
    has_succeeded: bool = False


@dataclass(slots=True)
class DumpedTrajectory:
    """A trajectory as a dump describes it.

    Attributes:
        place: number of its line or row in the file.
        identity: which trajectory it is.
        messages: the conversation in the form of OpenAI's chat API: ``role``, ``content``, ``tool_calls``. A
            tool's result may have an ``error`` and ``error_type``, or ``is_error`` if its content is one.
        rewards: name of a score → value; ``reward`` is the score that training used. None is no score.
        times: start and end in ns; None if unknown.
        turns: facts of each model call, in order.
        prompt: number of messages that the model was given; replies among them are no model calls.
        facts: further attributes of the trajectory, by their whole names or without ``rollout.``.
        versions: the oldest and the newest version of the weights that generated it; None if unknown.
        error: why the trajectory failed; empty if it did not fail, or the reason is unknown.
        ending: why its last model call ended, in the dump's words; empty if unknown.
        comments: name of a score → its reason, in words.
        is_running: whether it had not ended when the file was written.
        key: unique key in the dump that stays the same while the trajectory grows; None if the file's records
            up to its own identify the trajectory.
    """

    place: int
    identity: RolloutIdentity
    messages: Messages
    rewards: Mapping[str, Any]
    times: Times | None = None
    turns: Sequence[ModelTurn] = ()
    prompt: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    versions: tuple[Any, Any] = (None, None)
    error: str = ""
    ending: str = ""
    comments: Mapping[str, str] = field(default_factory=dict)
    is_running: bool = False
    key: Any = None

    def calls(self, id_of: Callable[[int], str]) -> Iterator[DumpedCall]:
        """Yield the model calls and tool calls in their order.

        Args:
            id_of: returns the id of the span of the n-th call, from 0.
        """
        said = iter(self.turns)
        number, begin, context = 0, 0, 0
        before = end = None
        acted = [
            place
            for place, message in enumerate(self.messages)
            if message.get("role") == MODEL and place >= self.prompt and not message.get(GIVEN)
        ]
        for place in acted:
            if not self.messages[place].get(CALLS_ALONE):
                turn = next(said, _UNKNOWN)
                if turn.is_new_context and before is not None:
                    before, begin = None, begin + 1
                    context = begin
                made = _model_call(self.messages[begin:place], self.messages[place], turn)
                if self.ending and place == acted[-1]:
                    made.attributes[semconv.GEN_AI_RESPONSE_FINISH_REASONS] = [self.ending]
                if before is not None:
                    made.attributes |= {
                        semconv.TURN_CONTINUES: id_of(before),
                        semconv.TURN_SHARED: begin - context,
                        semconv.TURN_LENGTH: place - context,
                    }
                yield made
                before, number, begin = number, number + 1, place
                end = turn.times[1] if turn.times else end
            for tool in _tool_calls(self.messages[place], self.messages[place + 1 :], end):
                yield tool
                number += 1


_UNKNOWN: Final = ModelTurn()


def identity_part(value: Any) -> Any:
    """Return a step, sample or rollout as a recorded one is read: ``2``, ``2.0`` and ``"2"`` are one step."""
    value = scalar(value)
    number = integer_in(value) if isinstance(value, str) else None
    return value if number is None else number


def asked_in(messages: Messages) -> Messages:
    """Return the messages before the model's first one, which siblings share, or else the first message."""
    return list(takewhile(lambda message: message.get("role") != MODEL, messages)) or messages[:1]


def rewards_in(value: Any) -> dict[str, Any]:
    """Return rewards by name; a single reward, or a text alone, is stored under the name ``reward``, too."""
    is_one = not isinstance(value, Mapping)
    found = entries_of({REWARD: value} if is_one else value, int, float, *([str] if is_one else []))
    return found | {REWARD: next(iter(found.values()))} if len(found) == 1 else found


def _model_call(new: Messages, reply: Mapping[str, Any], turn: ModelTurn) -> DumpedCall:
    attributes: dict[str, Any] = {
        semconv.SPAN_KIND: semconv.KIND_LLM,
        **_content(semconv.INPUT_VALUE, _json({"messages": new}) if new else None),
        **_content(semconv.OUTPUT_VALUE, _json(reply) if reply.keys() > {"role"} else None),
        semconv.GEN_AI_USAGE_INPUT_TOKENS: turn.read,
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: turn.written,
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: turn.cached,
        semconv.GEN_AI_REQUEST_MODEL: turn.model,
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: [str(turn.reason)] if turn.reason else None,
    }
    return DumpedCall("generate", attributes, turn.times, turn.error)


def _json(value: Mapping[str, Any]) -> str:
    """Return messages as JSON text, by orjson unless they hold values that orjson cannot write."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # bytes, or an integer of more than 64 bits
        return as_json(value)


def _tool_calls(reply: Mapping[str, Any], following: Messages, end: int | None) -> Iterator[DumpedCall]:
    """Yield the tool calls of a reply with their results: by the call's id, or in order without an id."""
    if not (asked := _calls_of(reply)):
        return
    results = list(takewhile(lambda message: message.get("role") in TOOL_ROLES, following))
    ids = {str(call["id"]) for call in asked if call.get("id")}
    by_id = {str(found.get("tool_call_id")): found for found in results if found.get("tool_call_id")}
    in_order = iter([found for found in results if str(found.get("tool_call_id")) not in ids])
    for call in asked:
        result = by_id.get(str(call.get("id"))) or next(in_order, {})
        name = str(call.get("name") or "tool")
        attributes = {
            semconv.SPAN_KIND: semconv.KIND_TOOL,
            semconv.GEN_AI_TOOL_NAME: name,
            semconv.GEN_AI_TOOL_CALL_ID: str(call.get("id") or "") or None,
            **_content(semconv.INPUT_VALUE, call.get("arguments")),
            **_content(semconv.OUTPUT_VALUE, result.get("content")),
            semconv.ERROR_TYPE: result.get("error_type"),
        }
        times = None if end is None else (end, end)
        error = result.get("error") or (result.get("is_error") and result.get("content")) or ""
        yield DumpedCall(name, attributes, times, str(error), bool(times), result.get("is_error") is False)


def _calls_of(reply: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the calls that a reply asks for, each with ``id``, ``name`` and ``arguments``."""
    calls = reply.get("tool_calls")
    asked = [*(calls if isinstance(calls, (list, tuple)) else ()), reply.get("function_call")]
    return [
        {**call, **entries_of(call.get("function"), object)} for call in asked if isinstance(call, Mapping)
    ]


def _content(name: str, value: Any) -> dict[str, Any]:
    """Return the attributes of an input or output: the value as text or JSON, and its MIME type."""
    if value is None:
        return {}
    is_text = isinstance(value, str)
    mime_type = semconv.TEXT_MIME_TYPE if is_text and not value.startswith("{") else semconv.JSON_MIME_TYPE
    return {name: value if is_text else as_json(value), semconv.MIME_TYPES[name]: mime_type}


class Groups:
    """Assigns numbers to groups and siblings in the order of the file, for a dump without such numbers.

    The key of a group is the group's id in the dump, or the prompt if siblings have equal prompts. It may be
    of any types that JSON has.
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, list[int]] = {}

    def place(self, *key: Any) -> tuple[int, int]:
        """Return the number of the group with this key, and the number of the next trajectory in it."""
        wanted = hash(repr([scalar(part) for part in key]))
        found = self._numbers.setdefault(wanted, [len(self._numbers), -1])
        found[1] += 1
        return found[0], found[1]
