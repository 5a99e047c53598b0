"""The spans of a trajectory → what was said and done in it, turn by turn, each thing once.

A model call resends all that was said before it; of that a turn shows what is new. What a tool answered is in
its span and in the message that the model got of it: that is one turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypedDict, TypeVar

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from otel_rollout.base import semconv
from otel_rollout.forwarder import context_diff as sequences
from otel_rollout.forwarder.context_diff import Shared
from otel_rollout.forwarder.detokenizer import Detokenizer
from otel_rollout.viewer import messages, summary
from otel_rollout.viewer.messages import Call, Message, Reply, Request
from otel_rollout.viewer.summary import Summary, Tokens

MODEL: Final = "assistant"
TOOL: Final = "tool"
EVALUATOR: Final = "evaluator"
FAILURE: Final = "failure"
_MODEL_OPERATIONS: Final = frozenset({"chat", "text_completion", "generate_content"})
_INPUT_MESSAGES: Final = "gen_ai.input.messages"
_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
_TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
_TOOL_RESULT: Final = "gen_ai.tool.call.result"
_Item = TypeVar("_Item")


@dataclass
class Turn:
    """Something that was said or done.

    Attributes:
        role: who: ``system``, ``user``, ``assistant``, ``tool`` and so on as messages have it; ``evaluator``;
            ``failure`` for an operation that is none of these and failed.
        name: of the tool, the evaluator or the operation.
        text: what was said; of a tool its answer.
        calls: tools that the model wants called.
        arguments: of a tool or evaluator.
        problem: the error it ended with.
        stack: where that was raised.
        ids: the tokens that the model wrote.
        tokens: of the model call.
        finish: why the model stopped.
        seconds: how long it took; None for what was only passed on.
        note: how its context follows from those before, where that is not plainly by going on.
        inside: the trajectory within this one that it belongs to.
    """

    role: str
    text: str = ""
    name: str = ""
    calls: tuple[Call, ...] = ()
    arguments: Any = None
    problem: str = ""
    stack: str = ""
    ids: tuple[int, ...] = ()
    tokens: Tokens = field(default_factory=Tokens)
    finish: str = ""
    seconds: float | None = None
    note: str = ""
    inside: str = ""

    @property
    def unwritten_calls(self) -> tuple[Call, ...]:
        """The calls that the text does not show already, as the model has written them."""
        return tuple(call for call in self.calls if not _is_written(call, self.text))

    @property
    def shows_arguments(self) -> bool:
        """Whether there is something to show of its arguments: of a tool also that it got none."""
        return bool(self.arguments) or (self.role == TOOL and self.arguments is not None)

    @property
    def is_call(self) -> bool:
        """Whether the model was called for it."""
        return self.role == MODEL and self.seconds is not None


@dataclass(frozen=True)
class Conversation:
    """A trajectory as a conversation."""

    summary: Summary
    turns: Sequence[Turn]

    @property
    def model_calls(self) -> int:
        """How often a model was called."""
        return sum(turn.is_call for turn in self.turns)

    @property
    def tool_calls(self) -> int:
        """How often tools were called."""
        return sum(turn.role == TOOL and turn.seconds is not None for turn in self.turns)

    @property
    def tokens_written(self) -> int | None:
        """How many tokens models have written; None where nobody said."""
        said = self.summary.tokens.output
        return said if said is not None else Tokens.total(turn.tokens for turn in self.turns).output

    @property
    def failures(self) -> int:
        """How many turns ended with an error."""
        return sum(bool(turn.problem) for turn in self.turns)


Decoders = Callable[[str], Detokenizer | None]
"""By the name of a tokenizer (``rollout.tokenizer``) what decodes with it; None where that is not there."""


def conversation(
    spans: Sequence[ReadableSpan], root_id: int | None = None, decoders: Decoders = lambda name: None
) -> Conversation:
    """Put a trajectory together.

    Args:
        spans: all of its trace, in any order; at least one.
        root_id: the span that it begins with, if it is a part of the trace.
        decoders: for token ids whose text was not recorded.
    """
    gathering = summary.gathered(spans, root_id)
    root = gathering.root_id
    tree = _Tree(spans)
    told = _Telling(tree, decoders, gathering.summary().path)
    for span in tree.below(root):
        told.tell(span)
    if not any(turn.is_call for turn in told.turns) and root is not None:
        told.turns = [*_asked_and_answered(tree.spans[root]), *told.turns]
    return Conversation(gathering.summary(), told.turns)


class _Tree:
    """The spans of a trace, each once."""

    def __init__(self, spans: Sequence[ReadableSpan]) -> None:
        self.spans = {_id(span): span for span in spans}
        self._children: dict[int | None, list[ReadableSpan]] = {}
        for span in sorted(
            self.spans.values(), key=lambda span: (span.start_time or 0, -(span.end_time or 0))
        ):
            parent = span.parent.span_id if span.parent else None
            known = parent in self.spans and parent != _id(span)
            self._children.setdefault(parent if known else None, []).append(span)

    def inside(self, span: ReadableSpan) -> Iterator[ReadableSpan]:
        """The spans below one, in the order they began."""
        found = self._descended(self._children.get(_id(span), ()), lambda one: True)
        return iter(sorted(found, key=lambda one: one.start_time or 0))

    def below(self, root: int | None) -> list[ReadableSpan]:
        """What happened, in its order: everything but the root and what lies within model calls."""
        found = self._descended(self._children.get(root, ()), lambda span: not is_model_call(span))
        return sorted(found, key=_moment)

    def _descended(
        self, spans: Iterable[ReadableSpan], is_entered: Callable[[ReadableSpan], bool]
    ) -> Iterable[ReadableSpan]:
        """These spans and what lies within those that are entered; each once, should they go in a circle."""
        found: dict[int, ReadableSpan] = {}
        left = list(spans)
        while left:
            span = left.pop()
            if _id(span) not in found:
                found[_id(span)] = span
                left += self._children.get(_id(span), ()) if is_entered(span) else ()
        return found.values()

    def is_told_elsewhere(self, span: ReadableSpan) -> bool:
        """Whether its error came out of a span inside it, or went on into one around it that acts."""
        problem = _problem(span)
        around = (other for other in self.around(span) if _acts(other))
        return any(_problem(other) == problem for other in (*self.inside(span), *around))

    def around(self, span: ReadableSpan) -> list[ReadableSpan]:
        """The spans that one lies in, from the nearest outwards."""
        found: list[ReadableSpan] = []
        parent = self.spans.get(span.parent.span_id) if span.parent else None
        while parent is not None and parent not in found:
            found.append(parent)
            parent = self.spans.get(parent.parent.span_id) if parent.parent else None
        return found


def _moment(span: ReadableSpan) -> int:
    """When a span is told of: what does or says something when it begins, others, if they fail, then."""
    return (span.start_time if _acts(span) else span.end_time) or 0


def _acts(span: ReadableSpan) -> bool:
    return is_model_call(span) or _kind(span) in (semconv.KIND_TOOL, semconv.KIND_EVALUATOR)


def _id(span: ReadableSpan) -> int:
    return span.context.span_id if span.context else 0


def _kind(span: ReadableSpan) -> str:
    attributes = span.attributes or {}
    if attributes.get(semconv.GEN_AI_OPERATION_NAME) == "execute_tool":
        return semconv.KIND_TOOL
    return str(attributes.get(semconv.SPAN_KIND, ""))


def is_model_call(span: ReadableSpan) -> bool:
    """Whether a span is the call of a model."""
    operation = (span.attributes or {}).get(semconv.GEN_AI_OPERATION_NAME)
    return _kind(span) == semconv.KIND_LLM or operation in _MODEL_OPERATIONS


class _Telling:
    """The turns told so far, and what is to be known of them to tell the next."""

    def __init__(self, tree: _Tree, decoders: Decoders, path: str) -> None:
        self.turns: list[Turn] = []
        self._tree = tree
        self._decoders = decoders
        self._path = path
        self._by_message = sequences.Turns(sequences.MESSAGE_BYTES)
        self._by_token = sequences.Turns(sequences.TOKEN_BYTES)
        self._calls: dict[str, _Called] = {}
        self._unanswered: list[tuple[str, Turn]] = []

    def tell(self, span: ReadableSpan) -> None:
        """What happened next."""
        if summary.score_of(span) is not None:
            return
        if is_model_call(span):
            self._model(span)
        elif _kind(span) == semconv.KIND_TOOL:
            self._tool(span)
        elif _kind(span) == semconv.KIND_EVALUATOR:
            self._add(span, _evaluation(span))
        elif _problem(span) and not self._tree.is_told_elsewhere(span):
            self._add(span, _failure(span))

    def _add(self, span: ReadableSpan, turn: Turn) -> None:
        path = summary.path_of(span.attributes or {})
        turn.inside = path if path != self._path else ""
        self.turns.append(turn)

    def _tool(self, span: ReadableSpan) -> None:
        turn = _tool_turn(span)
        self._add(span, turn)
        self._unanswered.append((str((span.attributes or {}).get(semconv.GEN_AI_TOOL_CALL_ID) or ""), turn))

    def _model(self, span: ReadableSpan) -> None:
        within = [span, *self._tree.inside(span)]
        called = _Called(self._restored(_request(within)), _reply(within))
        said, note = self._new(f"{_id(span):016x}", called, span)
        self._calls |= {f"{_id(inner):016x}": called for inner in within}
        shown = self._unsaid(said)
        for turn in shown:
            self._add(span, turn)
        answer = _answer(span, called, _tokens(within))
        if not answer.text and called.reply.ids:
            decoded = self._decoded(within, called.all_ids, len(called.request.prompt_ids))
            answer.text = messages.without_end(decoded) or _untold(len(called.reply.ids))
        (shown or [answer])[0].note = note
        self._add(span, answer)
        called.turn = answer

    def _restored(self, request: Request) -> Request:
        """All of what was asked, where it is told as what it adds to an earlier call."""
        ids, said = request.prompt_ids, request.messages
        if (after := request.ids_after) and (earlier := self._calls.get(after.turn)):
            ids = _continued(earlier.all_ids, after, ids)
        if (after := request.messages_after) and (earlier := self._calls.get(after.turn)):
            said = _continued(earlier.request.messages, after, said)
        return replace(request, prompt_ids=ids, messages=said)

    def _new(self, key: str, called: _Called, span: ReadableSpan) -> tuple[list[Message], str]:
        """What a call says that was not said before, and how it follows from an earlier one."""
        request = called.request
        by, asked, everything = self._as_sequence(called)
        shared = by.shared(key, asked, span.start_time or 0)
        earlier = self._calls.get(shared.turn) if shared else None
        by.add(key, everything, span.end_time or 0)
        count = shared.length if shared else 0
        if request.messages:
            called.length = len(request.messages)
            said, note = list(request.messages[count:]), self._note(earlier, count, called.length, "message")
        else:
            called.length = len(called.all_ids)
            length = len(request.prompt_ids)
            said = self._in_tokens(called, earlier, count, span) or self._without_text(
                span, length - count, count
            )
            note = self._note(earlier, count, length, "token")
        if said and earlier and count == earlier.length and earlier.is_resent_as(said[0]):
            said = said[1:]
        return said, note

    def _as_sequence(self, called: _Called) -> tuple[sequences.Turns, bytes, bytes]:
        """What a call was asked, as a sequence, and with its answer."""
        if called.request.messages:
            asked = sequences.messages([messages.key_of(message) for message in called.request.messages])
            return self._by_message, asked, asked
        asked = sequences.tokens(list(called.request.prompt_ids)) or b""
        return self._by_token, asked, sequences.tokens(list(called.all_ids)) or b""

    def _note(self, earlier: _Called | None, count: int, length: int, unit: str) -> str:
        if earlier is None:
            return "a context of its own" if self._calls else ""
        if count < earlier.length:
            if count == length:
                return "the same context again, or its beginning"
            return f"goes on from {unit} {count} of a context of {earlier.length}"
        return ""

    def _in_tokens(
        self, called: _Called, earlier: _Called | None, count: int, span: ReadableSpan
    ) -> list[Message]:
        """What the tokens of a prompt say beyond the first ``count``."""
        request = called.request
        before = earlier.text if earlier else ""
        if not request.prompt_text:
            new = self._decoded([span, *self._tree.inside(span)], request.prompt_ids, count)
        elif request.text_begins or not count:
            new = request.prompt_text
        else:
            new = request.prompt_text[common_length(before, request.prompt_text) :]
        called.text = (before if count else "") + new + called.reply.message.text
        return list(messages.spoken(new, "context"))

    def _decoded(self, within: Sequence[ReadableSpan], ids: Sequence[int], begin: int) -> str:
        """The text of ``ids`` from ``begin`` on; empty where there is nothing to decode it with."""
        names = (str((span.attributes or {}).get(semconv.TOKENIZER, "")) for span in within)
        name = next(filter(None, names), "")
        decoder = self._decoders(name) if name and len(ids) > begin else None
        return decoder.part(ids, begin, len(ids)) if decoder else ""

    def _without_text(self, span: ReadableSpan, new: int, shared: int) -> list[Message]:
        """Tokens of which only the number is known; the first of a trajectory are what it was asked."""
        if new == 0:
            return []
        asked = () if shared else self._asked_around(span)
        return list(asked) or [Message("context", _untold(new))]

    def _asked_around(self, span: ReadableSpan) -> tuple[Message, ...]:
        values = (
            messages.value_of(outer, semconv.INPUT_VALUE, semconv.INPUT_MIME_TYPE)
            for outer in self._tree.around(span)
        )
        return next((found for value in values if (found := messages.asked_in(value))), ())

    def _unsaid(self, said: Sequence[Message]) -> list[Turn]:
        """Messages as turns; a tool's answer goes to the turn of its call."""
        turns = []
        for message in said:
            called = self._called(message) if message.role == TOOL else None
            if called is None:
                turns.append(Turn(message.role, message.text, calls=message.calls))
            else:
                called.text = message.text
        self._unanswered.clear()
        return turns

    def _called(self, answer: Message) -> Turn | None:
        """The call of a tool that a message answers: that of its id, or the first that has no answer yet."""
        by_id = [pair for pair in self._unanswered if answer.call_id and pair[0] == answer.call_id]
        found = next(
            iter(by_id or [pair for pair in self._unanswered if not (pair[0] and answer.call_id)]), None
        )
        if found is None:
            return None
        self._unanswered = [pair for pair in self._unanswered if pair is not found]
        return found[1]


@dataclass
class _Called:
    """A model call, as the next ones are told by it.

    Attributes:
        request: what was asked, all of it.
        reply: what was answered.
        length: messages of the request, or tokens of request and reply.
        text: that of these tokens, as far as it is known.
        turn: the reply as it is shown.
    """

    request: Request
    reply: Reply
    length: int = 0
    text: str = ""
    turn: Turn = field(default_factory=lambda: Turn(MODEL))

    @property
    def all_ids(self) -> tuple[int, ...]:
        """The tokens of request and reply."""
        return self.request.prompt_ids + self.reply.ids

    def is_resent_as(self, message: Message) -> bool:
        """Whether a message is the reply as the conversation goes on with it; that tells its calls apart."""
        if message.role != MODEL or "".join(message.text.split()) not in "".join(self.turn.text.split()):
            return False
        self.turn.calls = message.calls or self.turn.calls
        return True


def _continued(earlier: Sequence[_Item], after: Shared, new: Sequence[_Item]) -> tuple[_Item, ...]:
    """What is told by an earlier call, whole; what is new where that call is not read as it was told by."""
    return tuple(sequences.restored(earlier, after.length, new) if after.length <= len(earlier) else new)


def _untold(count: int) -> str:
    return f"({count} tokens, whose text was not recorded)"


def _request(within: Sequence[ReadableSpan]) -> Request:
    """What a call asked, its span's words before those of spans inside it."""
    found = [
        messages.request_of(
            messages.value_of(span, semconv.INPUT_VALUE, semconv.INPUT_MIME_TYPE),
            messages.value_of(span, _INPUT_MESSAGES),
        )
        for span in within
    ]
    in_tokens = next((request for request in found if request.prompt_ids or request.ids_after), None)
    output = messages.value_of(within[0], semconv.OUTPUT_VALUE, semconv.OUTPUT_MIME_TYPE)
    text = output.get("prompt_text") if isinstance(output, Mapping) else None
    if in_tokens and isinstance(text, str) and text:
        begins = output.get("prompt_text_begins_at_token")
        return replace(
            in_tokens, messages=(), prompt_text=text, text_begins=begins if isinstance(begins, int) else 0
        )
    if not found[0].messages:
        return in_tokens or next((request for request in found if request.messages), found[0])
    told = within[0].attributes or {}
    request = replace(in_tokens or Request(), messages=found[0].messages)
    shared, length = told.get(semconv.TURN_SHARED), told.get(semconv.TURN_LENGTH)
    if isinstance(shared, int) and length == shared + len(request.messages):
        return replace(request, messages_after=Shared(str(told.get(semconv.TURN_CONTINUES)), shared))
    return request


def _reply(within: Sequence[ReadableSpan]) -> Reply:
    values = [messages.value_of(span, semconv.OUTPUT_VALUE, semconv.OUTPUT_MIME_TYPE) for span in within]
    further = messages.value_of(within[0], _OUTPUT_MESSAGES)
    outer = messages.reply_of(values[0], further)
    ids = outer.ids or next((found for value in values if (found := messages.reply_ids(value))), ())
    reasons = (within[0].attributes or {}).get(semconv.GEN_AI_RESPONSE_FINISH_REASONS)
    told = ", ".join(map(str, reasons)) if isinstance(reasons, (list, tuple)) else ""
    return replace(outer, ids=ids, finish=told or outer.finish)


def _tokens(within: Sequence[ReadableSpan]) -> Tokens:
    """The counts of the outermost span that has some."""
    return next((found for span in within if (found := summary.tokens_of(span))), Tokens())


def _answer(span: ReadableSpan, called: _Called, said: Tokens) -> Turn:
    reply = called.reply
    counted = (len(called.request.prompt_ids) or None, len(reply.ids) or None)
    tokens = Tokens(
        counted[0] if said.input is None else said.input,
        counted[1] if said.output is None else said.output,
        said.cached,
    )
    return Turn(
        MODEL,
        messages.without_end(reply.message.text),
        calls=reply.message.calls,
        ids=reply.ids,
        tokens=tokens,
        finish=reply.finish,
        **_ending(span),
    )


def _tool_turn(span: ReadableSpan) -> Turn:
    given = messages.value_of(span, semconv.INPUT_VALUE, semconv.INPUT_MIME_TYPE)
    arguments = messages.value_of(span, _TOOL_ARGUMENTS)
    named = given if isinstance(given, Mapping) else {}
    if arguments is None:
        arguments = named.get("arguments", given)
    name = (span.attributes or {}).get(semconv.GEN_AI_TOOL_NAME)
    if name is None and "arguments" in named:
        name = named.get("name")
    result = messages.value_of(span, semconv.OUTPUT_VALUE, semconv.OUTPUT_MIME_TYPE)
    if result is None:
        result = messages.value_of(span, _TOOL_RESULT)
    return Turn(
        TOOL,
        _result_text(result),
        name=str(name or span.name),
        arguments=messages.read_json(arguments) if isinstance(arguments, str) else arguments,
        **_ending(span),
    )


def _result_text(result: Any) -> str:
    """What a tool gave; of an object with a text and nothing else that matters, the text."""
    if isinstance(result, Mapping) and isinstance(result.get("response"), Mapping):  # verl's
        result = result["response"]
    if isinstance(result, Mapping):
        telling = {name: value for name, value in result.items() if value not in (None, "", [], {})}
        if list(telling) == ["text"]:
            return messages.as_text(telling["text"])
    return messages.as_text(result)


def _evaluation(span: ReadableSpan) -> Turn:
    return Turn(
        EVALUATOR,
        messages.as_text(messages.value_of(span, semconv.OUTPUT_VALUE, semconv.OUTPUT_MIME_TYPE)),
        name=span.name,
        arguments=messages.value_of(span, semconv.INPUT_VALUE, semconv.INPUT_MIME_TYPE),
        **_ending(span),
    )


def _failure(span: ReadableSpan) -> Turn:
    return Turn(
        FAILURE,
        name=span.name,
        arguments=messages.value_of(span, semconv.INPUT_VALUE, semconv.INPUT_MIME_TYPE),
        **_ending(span),
    )


def _asked_and_answered(root: ReadableSpan) -> list[Turn]:
    """A trajectory in which no model call was recorded, by what its root shows."""
    asked = messages.value_of(root, semconv.INPUT_VALUE, semconv.INPUT_MIME_TYPE)
    answered = messages.value_of(root, semconv.OUTPUT_VALUE, semconv.OUTPUT_MIME_TYPE)
    said = [*messages.request_of(asked).messages, *messages.messages_in(answered, MODEL)]
    return [Turn(message.role, message.text, calls=message.calls) for message in said]


class _Ending(TypedDict):
    problem: str
    stack: str
    seconds: float


def _problem(span: ReadableSpan) -> str:
    """What a span that failed says of it."""
    if span.status.status_code is not StatusCode.ERROR:
        return ""
    return span.status.description or str((span.attributes or {}).get(semconv.ERROR_TYPE, "")) or "error"


def _ending(span: ReadableSpan) -> _Ending:
    stacks = [
        str((event.attributes or {}).get(semconv.EXCEPTION_STACKTRACE, ""))
        for event in span.events
        if event.name == "exception"
    ]
    seconds = ((span.end_time or 0) - (span.start_time or 0)) / 1e9
    return {"problem": _problem(span), "stack": stacks[-1] if stacks else "", "seconds": seconds}


def common_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How long a beginning two sequences have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))


def _is_written(call: Call, text: str) -> bool:
    values = call.arguments.values() if isinstance(call.arguments, Mapping) else [call.arguments]
    return call.name in text and all(messages.as_text(value) in text for value in values)
