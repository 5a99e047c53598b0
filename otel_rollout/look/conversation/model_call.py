"""Read request, reply and token counts of a model call from its spans; find what is new in its request.

A client's span often contains the engine's span. Both are one call, and each fact is read from the outermost
span that has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from otel_rollout.base import semconv
from otel_rollout.look.conversation.summary import tokens_of
from otel_rollout.look.conversation.turn import MODEL, Turn, ending_of
from otel_rollout.otlp import messages, model_calls
from otel_rollout.otlp.messages import Message, Reply, Request, Shared
from otel_rollout.otlp.model_calls import CallContents
from otel_rollout.otlp.span import Span

_THOUGHT_END: Final = "</think>"
"""End of reasoning; an answer that comes back without it was edited, as the view ``continued_calls`` says."""


@dataclass
class ModelCall:
    """A model call, with the data to find the prefix that a later call shares with it.

    Attributes:
        request: the whole request.
        reply: the whole reply.
        length: number of the request's messages; for token ids, number of tokens of request and reply.
        caller: whose call it is, as in :class:`OpenCall`.
        tools: number of the tool calls before it.
        continued: the call whose context it continues; None for a context of its own.
        text: text of the request's and the reply's tokens, as far as it is known.
        turn: the reply's turn.
        resent: the reply in the form that a later context has; None if none repeats it.
    """

    request: Request
    reply: Reply
    length: int = 0
    caller: tuple[str, str] = ("", "")
    tools: int = 0
    continued: ModelCall | None = None
    text: str = ""
    turn: Turn = field(default_factory=lambda: Turn(MODEL))
    resent: Message | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens of request and reply."""
        return self.request.prompt_ids + self.reply.token_ids

    @property
    def has_failed(self) -> bool:
        """Whether the call ended with an error."""
        return bool(self.turn.error)

    @property
    def rank(self) -> tuple[bool, int]:
        """Sort key: a call that succeeded ranks above a failed one, then a longer one above a shorter one."""
        return not self.has_failed, self.length

    def answer(self, span: Span, row: Mapping[str, Any]) -> Turn:
        """Return the reply as a turn, from the call's outermost span and its row of the view ``turns``."""
        reply = self.reply
        return Turn(
            MODEL,
            messages.without_end(reply.message.text),
            calls=reply.message.calls,
            token_ids=reply.token_ids,
            tokens=tokens_of(row),
            model=row.get("model") or "",
            finish_reason=row.get("finish_reason") or "",
            **ending_of(span),
        )

    def take_resent_reply(self, message: Message) -> bool:
        """Take over the tool calls of ``message`` if it repeats the reply.

        The repeated reply has its tool calls as values. The reply itself may have tool calls only in its
        text.

        Returns:
            Whether ``message`` repeats the reply.
        """
        if message.role != MODEL or squeezed(message.text) not in squeezed(self.turn.text):
            return False
        self.turn.calls = message.calls or self.turn.calls
        self.resent = message
        return True

    def is_repeated_by(self, message: Message, is_in_place: bool) -> bool:
        """Return whether a message of a later context repeats the reply.

        A message with only a part of the reply repeats it if the message stands in the reply's place.
        """
        said, again = squeezed(self.turn.text), squeezed(message.text)
        if said != again:
            return is_in_place and again in said and bool(again or message.calls)
        return bool(said) or (bool(message.calls) and message.calls == self.turn.calls)


def read_request(spans: Sequence[Span]) -> Request:
    """Read a model call's request from the call's spans, the outermost first."""
    found = [
        messages.request_of(
            messages.value_of(span, semconv.INPUT_VALUE),
            _contents_of(span).messages,
        )
        for span in spans
    ]
    with_ids = next((request for request in found if request.prompt_ids or request.shared_ids), None)
    output = messages.value_of(spans[0], semconv.OUTPUT_VALUE)
    if with_ids and isinstance(output, Mapping) and (text := _prompt_text(output)):
        start = output.get("prompt_text_begins_at_token")
        start = start if isinstance(start, int) else 0
        return replace(with_ids, messages=(), prompt_text=text, text_start=start)
    if not found[0].messages:
        return with_ids or next((request for request in found if request.messages), found[0])
    request = replace(with_ids or Request(), messages=found[0].messages, recorded=found[0].recorded)
    return replace(request, shared_messages=_shared_messages(spans[0], len(request.recorded)))


def _contents_of(span: Span) -> CallContents:
    """Return the contents that another library recorded outside of input and output."""
    events = ((event.name, event.attributes) for event in span.events)
    return model_calls.read_call(span.attributes, events)


def _prompt_text(output: Mapping[str, Any]) -> str:
    text = output.get("prompt_text")
    return text if isinstance(text, str) else ""


def _shared_messages(span: Span, new: int) -> Shared | None:
    """Return which earlier messages precede a span's ``new`` ones; None without any."""
    attributes = span.attributes
    shared, length = attributes.get(semconv.TURN_SHARED), attributes.get(semconv.TURN_LENGTH)
    if isinstance(shared, int) and length == shared + new:
        return Shared(str(attributes.get(semconv.TURN_CONTINUES)), shared)
    return None


def read_reply(spans: Sequence[Span]) -> Reply:
    """Read a model call's reply from the call's spans, the outermost first."""
    values = [messages.value_of(span, semconv.OUTPUT_VALUE) for span in spans]
    reply = messages.reply_of(values[0], _contents_of(spans[0]).replies, spans[0].attributes)
    ids = reply.token_ids or next((found for value in values if (found := messages.reply_ids(value))), ())
    return replace(reply, token_ids=ids)


# --- a context that is not the continuation of an earlier one ----------------------------------------------


def unsaid(
    said: Sequence[Message], count: int, earlier: ModelCall, recent: Sequence[ModelCall]
) -> tuple[list[Message], bool]:
    """Return a request's new messages, and whether it edits an earlier context.

    In an edited context, messages are new from the first to the last difference, and after the repeated
    reply.

    Args:
        said: the messages of the request.
        count: number of its first messages that ``earlier`` has, too.
        earlier: the call that shares these messages.
        recent: the last calls, oldest first.
    """
    new = list(said[count:])
    if new and count == earlier.length and earlier.take_resent_reply(new[0]):
        return new[1:], _THOUGHT_END in earlier.turn.text and _THOUGHT_END not in new[0].text
    last = max((index for index, message in enumerate(new) if message.role == MODEL), default=None)
    if last is None:
        return new, False
    for call in reversed(recent):
        is_in_place = count + last == call.length
        if call.request.messages[:count] == said[:count] and call.is_repeated_by(new[last], is_in_place):
            call.take_resent_reply(new[last])
            changed, old = _without_common_end(new[:last], call.request.messages[count:])
            return [*changed, *new[last + 1 :]], bool(changed or old)
    is_other_reply = count == earlier.length and new[0].role == MODEL and bool(earlier.turn.text)
    return new, is_other_reply and len(new) > 1  # a single message begins the reply that is asked for


def _without_common_end(
    one: Sequence[Message], other: Sequence[Message]
) -> tuple[Sequence[Message], Sequence[Message]]:
    length = 0
    while length < min(len(one), len(other)) and one[-1 - length] == other[-1 - length]:
        length += 1
    return one[: len(one) - length], other[: len(other) - length]


# --- results of tools, which are in the next request --------------------------------------------------------


class OpenCall(NamedTuple):
    """A tool call whose result no request has yet.

    Attributes:
        span_id: id of its span.
        caller: whose call it is: the sub-trajectory, and the id of the nearest tool or evaluator around it.
        call_id: the call's id; empty if none was recorded.
        turn: the call's turn.
    """

    span_id: str
    caller: tuple[str, str]
    call_id: str
    turn: Turn


class OpenCalls:
    """The tool calls whose results no request has yet, in the order of the timeline.

    Attributes:
        made: number of the tool calls so far, with those whose results a request has.
    """

    def __init__(self) -> None:
        self.made = 0
        self._open: list[tuple[int, OpenCall]] = []
        self._asked: dict[tuple[str, str], ModelCall] = {}
        """Caller → its last model call."""

    def add(self, call: OpenCall) -> None:
        """Add a tool call."""
        self._open.append((self.made, call))
        self.made += 1

    def take(
        self, results: Sequence[Message], model: ModelCall, around: Collection[str]
    ) -> list[Turn | None]:
        """Return the turn of each result; None for the result of an older or unrecorded call.

        A call that recorded its result gets no message with another result, unless the ids of call and
        message are equal. A call without id and result has to be the model's caller's, and made since the
        call whose context the model continues: other models may be asked between, such as a judge. A request
        in a sub-trajectory may have results of the trajectory around it, not the reverse.

        Args:
            results: the results that are new in a request.
            model: the model call of the request.
            around: ids of the spans around the model call, which have no result yet.
        """
        continued = model.continued
        if continued is None or continued.caller != model.caller:
            continued = self._asked.get(model.caller)
        self._asked[model.caller] = model
        if not results:
            return []
        found: list[Turn | None] = [None] * len(results)
        seen = [
            (number, call)
            for number, call in self._open
            if call.span_id not in around and call.turn.sub_trajectory in ("", model.caller[0])
        ]
        seen.sort(key=lambda each: each[1].caller == model.caller)  # its own calls, the last one first
        for fits in (_has_id_and_text, _has_id, _has_text):
            for index in reversed(range(len(results))):
                fitting = (each for each in reversed(seen) if fits(each[1], results[index]))
                if found[index] is None and (taken := next(fitting, None)):
                    found[index] = taken[1].turn
                    seen.remove(taken)
        # The last results are the newest: an edited context may repeat older results before them.
        left = [index for index, turn in enumerate(found) if turn is None]
        since = continued.tools if continued else 0
        own = [call for number, call in seen if call.caller == model.caller and number >= since]
        for index, call in zip(reversed(left), reversed(own), strict=False):
            if _may_be(call, results[index]) and _is_in_either(call.turn.text, results[index].text):
                found[index] = call.turn
        taken_turns = set(map(id, found))
        self._open = [each for each in self._open if id(each[1].turn) not in taken_turns]
        return found


def _has_id_and_text(call: OpenCall, result: Message) -> bool:
    return _has_id(call, result) and squeezed(call.turn.text) == squeezed(result.text)


def _has_id(call: OpenCall, result: Message) -> bool:
    return bool(call.call_id) and call.call_id == result.call_id


def _has_text(call: OpenCall, result: Message) -> bool:
    said = squeezed(call.turn.text)
    return _may_be(call, result) and bool(said) and said == squeezed(result.text)


def _may_be(call: OpenCall, result: Message) -> bool:
    return not (call.call_id and result.call_id)


def _is_in_either(one: str, other: str) -> bool:
    """Return whether one text contains the other; every text contains an empty one."""
    one, other = squeezed(one), squeezed(other)
    return one in other or other in one


def squeezed(text: str) -> str:
    """Return a text without blanks, which a client or a template may change."""
    return "".join(text.split())
