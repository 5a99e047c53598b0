"""Define a turn, and what an engine did for it; make turns from spans that are no model calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from otel_rollout.base import semconv
from otel_rollout.look.conversation.span_tree import error_of
from otel_rollout.look.conversation.summary import Tokens
from otel_rollout.otlp import engine_phases, messages, model_calls
from otel_rollout.otlp.messages import Call
from otel_rollout.otlp.model_calls import called_tool
from otel_rollout.otlp.span import Span
from otel_rollout.table.schema import has_time

MODEL: Final = "assistant"
TOOL: Final = "tool"
EVALUATOR: Final = "evaluator"
OUTPUT: Final = "output"
"""Role of what a trajectory without model calls returned."""
FAILURE: Final = "failure"
"""Role of an operation that is neither model call nor tool nor evaluator, and failed."""
_CALL_MARK: Final = re.compile(
    r'[<\[|｜]tool.?call|<function|<invoke|<\|python_tag\||functions\.|"name"', re.IGNORECASE
)
"""Matches what chat templates write at a call: those of Qwen, GLM, Mistral, DeepSeek, Llama and gpt-oss."""


EngineRequest = Mapping[str, float | None]
"""Column of the view ``engine_requests`` → its value; times are in seconds, None if unknown."""


@dataclass(frozen=True)
class EngineTime:
    """The time that the engine's requests for a model call took.

    Attributes:
        requests: number of requests.
        phases: engine phase → seconds, summed over the requests; without phases that are unknown.
        first_token: seconds until the first token, the longest of several requests; None if unknown.
        tokens_per_second: tokens after each request's first one, per second of decode; None if unknown.
    """

    requests: int
    phases: Mapping[str, float]
    first_token: float | None
    tokens_per_second: float | None


@dataclass
class Turn:
    """A message, a model's reply, or the call of a tool or evaluator.

    Attributes:
        role: ``system``, ``user``, ``assistant``, ``tool`` and so on as in messages, ``evaluator`` or
            ``failure``.
        name: name of the tool, the evaluator or the failed operation.
        text: the message; for a tool its result.
        calls: tool calls that the model asks for.
        arguments: arguments of a tool or evaluator.
        has_result: whether a call of a tool has a recorded result, which may be an empty text.
        error: the turn's error; empty if the turn succeeded.
        error_type: class of the error; empty if unknown.
        has_succeeded: whether it is known that the call did not fail.
        stack: stack trace of the error.
        token_ids: tokens that the model generated.
        tokens: token counts of the model call.
        model: name of the model that was called.
        finish_reason: why the model stopped.
        is_call: whether it is a call, and not a message.
        seconds: duration; None for a message, and if unknown.
        note: relation of the model call's context to earlier ones; empty for a plain continuation.
        marks: what matters for training: changed weights, a broken prefix.
        engine: what the call's requests took in an inference engine; None without such requests.
        sub_trajectory: path of the turn's sub-trajectory; empty for a turn of the trajectory itself.
        is_own: whether it is the trajectory's own: no evaluator, none of its calls, no sub-trajectory's.
    """

    role: str
    text: str = ""
    name: str = ""
    calls: tuple[Call, ...] = ()
    arguments: Any = None
    has_result: bool = False
    error: str = ""
    error_type: str = ""
    has_succeeded: bool = False
    stack: str = ""
    token_ids: tuple[int, ...] = ()
    tokens: Tokens = field(default_factory=Tokens)
    model: str = ""
    finish_reason: str = ""
    is_call: bool = False
    seconds: float | None = None
    note: str = ""
    marks: tuple[str, ...] = ()
    engine: EngineTime | None = None
    sub_trajectory: str = ""
    is_own: bool = True

    @property
    def calls_outside_text(self) -> tuple[Call, ...]:
        """The tool calls that are not also in the turn's text."""
        return tuple(call for call in self.calls if not is_in_text(call, self.text))

    @property
    def shows_arguments(self) -> bool:
        """Whether the arguments are shown; only a tool shows empty arguments."""
        return bool(self.arguments) or (self.role == TOOL and self.arguments is not None)

    @property
    def has_content(self) -> bool:
        """Whether the turn's content was recorded: text, tokens, tool calls or arguments."""
        return bool(self.text or self.token_ids or self.calls or self.arguments)

    @property
    def is_model_call(self) -> bool:
        """Whether the turn is the reply of a model call that has a span."""
        return self.role == MODEL and self.is_call


def is_in_text(call: Call, text: str) -> bool:
    """Return whether a text contains a tool call, with its arguments, as a chat template writes it."""
    if not _CALL_MARK.search(text):
        return False
    values = call.arguments.values() if isinstance(call.arguments, Mapping) else [call.arguments]
    return call.name in text and all(messages.as_text(value) in text for value in values)


def id_of(call: Call, step: int, place: int) -> str:
    """Return a tool call's id; if it has none, make one of its step and its place in it, both from 1."""
    return call.id or f"{step}-{place}"


class Ending(TypedDict):
    """The fields of a :class:`Turn` about its span's end."""

    error: str
    error_type: str
    has_succeeded: bool
    stack: str
    is_call: bool
    seconds: float | None


def ending_of(span: Span) -> Ending:
    """Return how a span ended, and its duration, which is None if unknown or while the span runs."""
    stacks = [
        str(event.attributes.get(semconv.EXCEPTION_STACKTRACE, ""))
        for event in span.events
        if event.name == "exception"
    ]
    return {
        "error": error_of(span),
        "error_type": str(span.attributes.get(semconv.ERROR_TYPE) or ""),
        "has_succeeded": span.has_succeeded and not span.is_running,
        "stack": stacks[-1] if stacks else "",
        "is_call": True,
        "seconds": span.seconds if has_time(span.start_ns) and not span.is_running else None,
    }


def tool_turn(span: Span) -> Turn:
    """Return the turn of a tool's span."""
    input_ = messages.value_of(span, semconv.INPUT_VALUE)
    arguments = messages.value_of(span, semconv.GEN_AI_TOOL_CALL_ARGUMENTS)
    named = input_ if isinstance(input_, Mapping) else {}
    if arguments is None or arguments == input_:  # an import from MLflow repeats the input
        beside = [value for name, value in named.items() if name not in ("name", "arguments")]
        arguments = input_ if any(map(_is_said, beside)) else named.get("arguments", input_)
    result = messages.value_of(span, semconv.GEN_AI_TOOL_CALL_RESULT)
    if result is None:
        result = messages.value_of(span, semconv.OUTPUT_VALUE)
    return Turn(
        TOOL,
        _result_text(result),
        has_result=result is not None,
        name=called_tool(span.attributes, span.name),
        arguments=messages.read_json(arguments) if isinstance(arguments, str) else arguments,
        **ending_of(span),
    )


def _is_said(value: Any) -> bool:
    """Return whether a value says something: 0 and False do."""
    return value not in (None, "", [], {})


def _result_text(result: Any) -> str:
    """Return a tool's result as text; for an object with nothing but ``text``, return this field."""
    if isinstance(result, Mapping) and isinstance(result.get("response"), Mapping):  # verl's
        result = result["response"]
    if isinstance(result, Mapping):
        present = {name: value for name, value in result.items() if _is_said(value)}
        if list(present) == ["text"]:
            return messages.as_text(present["text"])
    return messages.as_text(result)


def evaluation_turn(span: Span) -> Turn:
    """Return the turn of an evaluator's span."""
    return Turn(
        EVALUATOR,
        messages.as_text(messages.value_of(span, semconv.OUTPUT_VALUE)),
        name=span.name,
        arguments=messages.value_of(span, semconv.INPUT_VALUE),
        **ending_of(span),
    )


def failure_turn(span: Span) -> Turn:
    """Return the turn of a failed operation, which is shown only for its error."""
    return Turn(
        FAILURE,
        name=span.name,
        arguments=messages.value_of(span, semconv.INPUT_VALUE),
        **ending_of(span),
    )


def with_root_turns(root: Span, turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns of a trajectory without model calls, between its root's input and output.

    An input or output that one of the turns shows is left out. The messages of an output keep their roles.
    """
    input_, output = (messages.value_of(root, name) for name in (semconv.INPUT_VALUE, semconv.OUTPUT_VALUE))
    asked = () if input_ in [turn.arguments for turn in turns] else messages.request_of(input_).messages
    given = list(messages.messages_in(output, OUTPUT))
    if {message.role for message in given} == {OUTPUT}:
        text = _result_text(output)
        given = [] if text in [turn.text for turn in turns] else [messages.Message(OUTPUT, text)]
    said = [Turn(each.role, each.text, calls=each.calls) for each in (*asked, *given)]
    return [*said[: len(asked)], *turns, *said[len(asked) :]]


def engine_time_of(spans: Sequence[Span], requests: Mapping[str, EngineRequest]) -> EngineTime | None:
    """Return the time that a model call's requests took in the engine; None without a request.

    Args:
        spans: the model call's spans.
        requests: span id → row of the view ``engine_requests``.
    """
    asked = [(requests[id_], span) for span in spans if (id_ := span.span_id) in requests]
    if not asked:
        return None
    phases = {
        phase: sum(times)
        for phase in engine_phases.PHASES
        if (times := [time for row, _ in asked if (time := row[f"{phase}_seconds"]) is not None])
    }
    first_tokens = (time for row, _ in asked if (time := row["first_token_seconds"]) is not None)
    counts = [model_calls.counts_of(span.attributes) for _, span in asked]
    return EngineTime(
        len(asked), phases, max(first_tokens, default=None), _rate(counts, phases.get(engine_phases.DECODE))
    )


def _rate(counts: Sequence[Mapping[str, int]], decode: float | None) -> float | None:
    """Return tokens per second of decode; prefill makes a request's first token, which does not count."""
    known = [count - 1 for each in counts if (count := each.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS))]
    return sum(known) / decode if decode and known and len(known) == len(counts) and sum(known) else None
