"""Build a conversation from the spans of a trajectory, each message once.

The request of a model call repeats all earlier messages; the call's turns show only new ones. A tool's result
is in the tool's span and in the message to the model; both become one turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from otel_rollout.base import semconv
from otel_rollout.look.conversation import summary
from otel_rollout.look.conversation.call_marks import CallMarks
from otel_rollout.look.conversation.model_call import (
    ModelCall,
    OpenCall,
    OpenCalls,
    read_reply,
    read_request,
    unsaid,
)
from otel_rollout.look.conversation.span_tree import SpanTree, error_of, is_model_call, kind_of
from otel_rollout.look.conversation.summary import Summary
from otel_rollout.look.conversation.trajectories import RecordedTrajectory
from otel_rollout.look.conversation.turn import (
    MODEL,
    TOOL,
    Turn,
    ending_of,
    engine_time_of,
    evaluation_turn,
    failure_turn,
    tool_turn,
    with_root_turns,
)
from otel_rollout.otlp import evaluations, messages
from otel_rollout.otlp.messages import Message, Request, Shared
from otel_rollout.otlp.span import Span
from otel_rollout.turns import context_diff

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Conversation:
    """A trajectory as a conversation.

    Attributes:
        summary: the trajectory's identity, state and scores.
        turns: each message and call once.
        said: each message of the trajectory's own model calls once, with its turn. Messages and tools of
            evaluators and sub-trajectories are left out. The turn of a reply or of a tool's result is a call.
        longest: the messages and the reply of the trajectory's model call with the longest context, the last
            one of several; empty without any. A failed call counts only if all calls failed, and an
            evaluator's call never.
        is_longest_known: whether ``longest`` is complete: nothing was cut, and the reply's text or calls are
            known.
        token_values: name → values per token of the response, as the trainer stored them.
        is_passed_over: whether the trainer scored other trajectories of the step, and not this one.
        stack: stack trace of the trajectory's own error; empty if a turn shows the error.
    """

    summary: Summary
    turns: Sequence[Turn]
    said: Sequence[tuple[Message, Turn]] = ()
    longest: Sequence[Message] = ()
    is_longest_known: bool = False
    token_values: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    is_passed_over: bool = False
    stack: str = ""

    @property
    def has_content(self) -> bool:
        """Whether any of its turns says something that was recorded."""
        return any(turn.has_content for turn in self.turns)

    @property
    def own(self) -> Conversation:
        """The conversation with the trajectory's own turns alone; with all of them if it has none."""
        return replace(self, turns=[turn for turn in self.turns if turn.is_own] or self.turns)

    @property
    def other_errors(self) -> int:
        """Number of turns with an error that are no tool calls: model calls, parsers, evaluators."""
        return sum(turn.role != TOOL and bool(turn.error) for turn in self.turns)


def conversation_of(recorded: RecordedTrajectory, is_passed_over: bool = False) -> Conversation:
    """Build the conversation of a trajectory.

    Args:
        recorded: the trajectory and its spans.
        is_passed_over: whether the trainer scored other trajectories of the step, and not this one.
    """
    tree = SpanTree(recorded.spans)
    root = tree.spans.get(recorded.root_id or "")
    builder = _TurnBuilder(tree, recorded)
    for span in tree.timeline(recorded.root_id):
        builder.add(span)
    turns = builder.turns
    if not any(turn.is_model_call for turn in turns) and root is not None:
        turns = with_root_turns(root, turns)
    return Conversation(
        recorded.summary,
        turns,
        builder.said(),
        builder.longest(),
        builder.is_longest_known(),
        recorded.token_values,
        is_passed_over,
        "" if root is None or tree.is_error_shown_elsewhere(root) else ending_of(root)["stack"],
    )


class _TurnBuilder:
    """Builds the turns of a conversation from spans, in the order of the timeline.

    Args:
        tree: the spans of the trace.
        recorded: the shown trajectory.
    """

    def __init__(self, tree: SpanTree, recorded: RecordedTrajectory) -> None:
        self.turns: list[Turn] = []
        self._tree = tree
        self._recorded = recorded
        self._by_message = context_diff.Turns(context_diff.MESSAGE_BYTES)
        self._by_token = context_diff.Turns(context_diff.TOKEN_BYTES)
        self._calls: dict[str, ModelCall] = {}
        self._said: list[tuple[Message | ModelCall, Turn]] = []
        self._longest: ModelCall | None = None
        self._recent: deque[ModelCall] = deque(maxlen=context_diff.MAX_BRANCHES)
        self._untold: ModelCall | None = None
        """The last call without a recorded request: the next context may begin with its reply."""
        self._open_calls = OpenCalls()
        self._marks = CallMarks()

    def add(self, span: Span) -> None:
        """Add the turns of the next span."""
        if evaluations.recorded_in(span.attributes, span.start_ns) is not None:
            return
        if is_model_call(span):
            self._add_model_call(span)
        elif kind_of(span) == semconv.KIND_TOOL:
            self._add_tool(span)
        elif kind_of(span) == semconv.KIND_EVALUATOR:
            self._append(span, evaluation_turn(span))
        elif error_of(span) and not self._tree.is_error_shown_elsewhere(span):
            self._append(span, failure_turn(span))

    def said(self) -> Sequence[tuple[Message, Turn]]:
        """Return each message with its turn; a tool's result is as a later model call got it, if one did."""
        said = {id(turn): (each, turn) for each, turn in self._said}
        return [
            (each.resent or _reply_of(each) if isinstance(each, ModelCall) else each, turn)
            for each, turn in said.values()
        ]

    def longest(self) -> Sequence[Message]:
        """Return messages and reply of the model call with the longest context."""
        call = self._longest
        if call is None:
            return ()
        if not call.request.messages:
            return messages.spoken(call.text, "")
        if call.has_failed and not call.turn.text:
            return call.request.messages
        return (*call.request.messages, _reply_of(call))

    def is_longest_known(self) -> bool:
        """Return whether :meth:`longest` is complete: nothing is cut, and the reply has text or calls."""
        call = self._longest
        if call is None or call.has_failed or not all(each.has_all_content for each in self.longest()):
            return False
        reply = call.reply
        return not call.request.messages or not (
            reply.token_ids
            and not reply.message.calls
            and call.turn.text == _without_text(len(reply.token_ids))
        )

    def _append(self, span: Span, added: Turn) -> None:
        added.sub_trajectory = self._sub_trajectory_of(span)
        is_judging = semconv.IN_EVALUATOR in span.attributes or any(
            kind_of(each) == semconv.KIND_EVALUATOR for each in (span, *self._tree.ancestors(span))
        )
        added.is_own = not (added.sub_trajectory or is_judging)
        self.turns.append(added)

    def _sub_trajectory_of(self, span: Span) -> str:
        path = summary.path_of(span.attributes)
        return path if path != self._recorded.summary.path else ""

    def _caller_of(self, span: Span) -> tuple[str, str]:
        """Return whose call a span is: the sub-trajectory, and the nearest tool or evaluator around it."""
        kinds = (semconv.KIND_TOOL, semconv.KIND_EVALUATOR)
        around = (each.span_id for each in self._tree.ancestors(span) if kind_of(each) in kinds)
        return self._sub_trajectory_of(span), next(around, "")

    def _add_tool(self, span: Span) -> None:
        added = tool_turn(span)
        self._append(span, added)
        call_id = str(span.attributes.get(semconv.GEN_AI_TOOL_CALL_ID) or "")
        self._open_calls.add(OpenCall(span.span_id, self._caller_of(span), call_id, added))
        if added.is_own:
            self._said.append((Message(TOOL, added.text, call_id=call_id), added))

    def _add_model_call(self, span: Span) -> None:
        spans = [span, *self._tree.descendants(span)]
        call = ModelCall(self._restored(read_request(spans)), read_reply(spans))
        call.caller, call.tools = self._caller_of(span), self._open_calls.made
        new, note = self._new_messages(call, span)
        self._calls |= {inner.span_id: call for inner in spans}
        heard = self._turns_of(new, call, span)
        added = [turn for turn in heard if not turn.is_call]
        for each in added:
            self._append(span, each)
        answer = call.answer(span, self._recorded.calls.get(span.span_id, {}))
        answer.engine = engine_time_of(spans, self._recorded.engine)
        answer.marks = self._marks.of(spans)
        has_calls = bool(call.reply.message.calls)  # a reply may consist of calls alone
        if not answer.text and call.reply.token_ids and not has_calls:
            answer.text = _without_text(len(call.reply.token_ids))
        (added or [answer])[0].note = note
        self._append(span, answer)
        call.turn = answer
        if call.request.messages:
            self._recent.append(call)
        elif not call.request.prompt_ids:
            self._untold = call
        if not answer.is_own:
            return
        self._said += [*zip(new, heard, strict=True), (call, answer)]
        if self._longest is None or call.rank >= self._longest.rank:
            self._longest = call

    def _restored(self, request: Request) -> Request:
        """Return a request with its shared prefix, if its span has only the new part."""
        ids = request.prompt_ids
        if (shared := request.shared_ids) and (earlier := self._calls.get(shared.turn)):
            ids = _with_prefix(earlier.token_ids, shared, ids)
        if (shared := request.shared_messages) and (earlier := self._calls.get(shared.turn)):
            recorded = _with_prefix(earlier.request.recorded, shared, request.recorded)
            said = tuple(messages.messages_in([*recorded], "user"))
            request = replace(request, messages=said, recorded=recorded)
        return replace(request, prompt_ids=ids)

    def _new_messages(self, call: ModelCall, span: Span) -> tuple[list[Message], str]:
        """Return a call's messages after the prefix of an earlier call, and a note on the context."""
        request = call.request
        known, asked, everything = self._as_sequence(call)
        shared = known.shared(span.span_id, asked, span.start_ns)
        earlier = call.continued = self._calls.get(shared.turn) if shared else None
        known.add(span.span_id, everything, span.end_ns)
        count = shared.length if shared else 0
        if request.messages:
            call.length = len(request.messages)
            new, is_edited = list(request.messages), False
            if earlier:
                new, is_edited = unsaid(request.messages, count, earlier, self._recent)
            elif self._untold and self._untold.take_resent_reply(new[0]):
                return new[1:], ""
            note = self._note(earlier, count, call.length, "message")
            return new, f"the context was edited after message {count}" if is_edited else note
        call.length = len(call.token_ids)
        length = len(request.prompt_ids)
        new = self._messages_of_tokens(call, earlier, count)
        if not new and length > count:
            new = self._messages_without_text(span, length - count, is_first=not count)
        note = self._note(earlier, count, length, "token")
        if new and earlier and count == earlier.length and earlier.take_resent_reply(new[0]):
            new = new[1:]
        return new, note

    def _as_sequence(self, call: ModelCall) -> tuple[context_diff.Turns, bytes, bytes]:
        """Return the earlier calls to compare with, and two byte sequences of this call.

        The first sequence is the request. The second adds the reply; for a call with messages the two are
        equal.
        """
        if call.request.messages:
            asked = context_diff.messages([messages.key_of(message) for message in call.request.messages])
            return self._by_message, asked, asked
        asked = context_diff.tokens(list(call.request.prompt_ids)) or b""
        return self._by_token, asked, context_diff.tokens(list(call.token_ids)) or b""

    def _note(self, earlier: ModelCall | None, count: int, length: int, unit: str) -> str:
        if earlier is None:
            return "a context of its own" if self._calls else ""
        if count < earlier.length:
            if count == length:
                return "the same context again, or its beginning"
            return f"goes on from {unit} {count} of a context of {earlier.length}"
        return ""

    def _messages_of_tokens(self, call: ModelCall, earlier: ModelCall | None, count: int) -> list[Message]:
        """Return the messages in a prompt's text beyond its first ``count`` tokens."""
        request = call.request
        before = earlier.text if earlier else ""
        is_new = bool(request.text_start) or not count
        new = request.prompt_text[0 if is_new else common_length(before, request.prompt_text) :]
        call.text = (before if count else "") + new + call.reply.message.text
        return list(messages.spoken(new, "context"))

    def _messages_without_text(self, span: Span, count: int, is_first: bool) -> list[Message]:
        """Return messages to show in place of ``count`` new tokens without text.

        For the first prompt of a context, the messages are the input of a span around the call, if it has
        one.
        """
        asked = self._asked_around(span) if is_first else ()
        return list(asked) or [Message("context", _without_text(count))]

    def _asked_around(self, span: Span) -> tuple[Message, ...]:
        values = (messages.value_of(ancestor, semconv.INPUT_VALUE) for ancestor in self._tree.ancestors(span))
        return next((found for value in values if (found := messages.asked_in(value))), ())

    def _turns_of(self, new: Sequence[Message], call: ModelCall, span: Span) -> list[Turn]:
        """Return the turn of each message; a tool's result goes to the turn of the tool's call."""
        around = [ancestor.span_id for ancestor in self._tree.ancestors(span)]
        results = [message for message in new if message.role == TOOL]
        answered = iter(self._open_calls.take(results, call, around))
        turns = []
        for message in new:
            turn = (next(answered) if message.role == TOOL else None) or Turn(
                message.role, calls=message.calls
            )
            turn.text = message.text
            turns.append(turn)
        return turns


def _reply_of(call: ModelCall) -> Message:
    """Return a model call's reply.

    Its text is the turn's if the recorded text is empty, or has a mark of the chat template.
    """
    said = call.reply.message.text
    return replace(call.reply.message, role=MODEL, text=said if said and "<|" not in said else call.turn.text)


def _with_prefix(earlier: Sequence[_Item], shared: Shared, new: Sequence[_Item]) -> tuple[_Item, ...]:
    """Prepend the prefix shared with ``earlier`` to ``new``.

    Return ``new`` unchanged if ``earlier`` lacks a part of the prefix.
    """
    is_whole = shared.length <= len(earlier)
    return tuple(context_diff.restored(earlier, shared.length, new) if is_whole else new)


def _without_text(count: int) -> str:
    return f"({count} tokens, whose text was not recorded)"


def common_length(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Return the length of the prefix that two sequences share."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(left), len(right)))
