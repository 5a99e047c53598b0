"""Find what is new in a request whose context is not the plain continuation of an earlier one."""

from __future__ import annotations

from collections.abc import Sequence

from otel_rollout.look.conversation.model_call import ModelCall
from otel_rollout.look.conversation.turn import MODEL
from otel_rollout.otlp.messages import Message


def unsaid(
    said: Sequence[Message], count: int, earlier: ModelCall, recent: Sequence[ModelCall]
) -> tuple[list[Message], bool]:
    """Return a request's new messages, and whether it edits an earlier context.

    Of an edited context, the messages are new from its first to its last difference, and behind its reply.

    Args:
        said: the request.
        count: number of its first messages that ``earlier`` has too.
        earlier: the call that shares them.
        recent: the last calls, oldest first.
    """
    new = list(said[count:])
    if new and count == earlier.length and earlier.take_resent_reply(new[0]):
        return new[1:], False
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
    return new, is_other_reply and len(
        new
    ) > 1  # a single one is the beginning of the reply that is asked for


def _without_common_end(
    one: Sequence[Message], other: Sequence[Message]
) -> tuple[Sequence[Message], Sequence[Message]]:
    length = 0
    while length < min(len(one), len(other)) and one[-1 - length] == other[-1 - length]:
        length += 1
    return one[: len(one) - length], other[: len(other) - length]
