"""Join tool calls with the messages that carry their results to the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from otel_rollout.look.conversation.turn import Turn
from otel_rollout.otlp.messages import Message


class OpenCalls:
    """The tool calls since the last model call: their results are not yet in a request."""

    def __init__(self) -> None:
        self._open: list[tuple[str, Turn]] = []
        """Call id and turn of each."""

    def add(self, call_id: str, turn: Turn) -> None:
        """Add a tool call; ``call_id`` is empty if none was recorded."""
        self._open.append((call_id, turn))

    def left(self) -> Sequence[tuple[str, Turn]]:
        """Return id and turn of each call."""
        return self._open

    def take(self, results: Sequence[Message]) -> list[Turn | None]:
        """Return the turn of each result, None for the result of an older or unrecorded call.

        A call that recorded its result gets no message with another one, unless their ids are equal.
        """
        found: list[Turn | None] = [None] * len(results)
        for fits in (_has_id_and_text, _has_id, _has_text):
            for index, turn in self._matches(results, found, fits):
                found[index] = turn
        # The last results are the newest: an edited context may repeat older ones before them.
        left = [index for index, turn in enumerate(found) if turn is None]
        for index, (call_id, turn) in zip(left[-len(self._open) :], self._open, strict=False):
            if _may_be(call_id, results[index]) and _is_in_either(turn.text, results[index].text):
                found[index] = turn
        self._open.clear()
        return found

    def _matches(
        self,
        results: Sequence[Message],
        found: Sequence[Turn | None],
        fits: Callable[[str, Turn, Message], bool],
    ) -> Iterator[tuple[int, Turn]]:
        """Yield and remove each call that fits a result without turn; of several, the last to the last."""
        for index in reversed(range(len(results))):
            if found[index] is None:
                pairs = (pair for pair in reversed(self._open) if fits(*pair, results[index]))
                if pair := next(pairs, None):
                    self._open = [other for other in self._open if other is not pair]
                    yield index, pair[1]


def _has_id_and_text(call_id: str, turn: Turn, result: Message) -> bool:
    return _has_id(call_id, turn, result) and squeezed(turn.text) == squeezed(result.text)


def _has_id(call_id: str, turn: Turn, result: Message) -> bool:
    return bool(call_id) and call_id == result.call_id


def _has_text(call_id: str, turn: Turn, result: Message) -> bool:
    return _may_be(call_id, result) and bool(turn.text) and squeezed(turn.text) == squeezed(result.text)


def _may_be(call_id: str, result: Message) -> bool:
    return not (call_id and result.call_id)


def _is_in_either(one: str, other: str) -> bool:
    """Return whether one text is a part of the other, as nothing is of every text."""
    one, other = squeezed(one), squeezed(other)
    return one in other or other in one


def squeezed(text: str) -> str:
    """Return a text without blanks, which a client or a template may change."""
    return "".join(text.split())
