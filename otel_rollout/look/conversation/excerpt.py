"""Shorten turns and comparisons so that they fit on a screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from otel_rollout.look.conversation import formatting
from otel_rollout.look.conversation.comparison import Comparison
from otel_rollout.look.conversation.turn import TOOL, Turn

_MAX_ITEMS: Final = 50
"""Maximum items of a list, and of a mapping, that are kept of a turn's arguments."""
_MAX_DEPTH: Final = 6
"""Maximum depth of nested arguments that are kept."""
_BEFORE: Final = 200
"""Characters kept before the point where two replies part."""
CUT: Final = "…"
"""Mark of a text that was cut."""


def shortened(turn: Turn, characters: int) -> Turn:
    """Return a turn with texts of at most ``characters`` characters, and with bounded arguments."""
    return replace(
        turn,
        text=cut(turn.text, characters),
        error=cut(turn.error, characters),
        stack=cut(turn.stack, characters),
        arguments=_bounded(turn.arguments, characters),
        calls=tuple(
            replace(call, arguments=_bounded(call.arguments, characters)) for call in turn.calls[:_MAX_ITEMS]
        ),
    )


def beginning(comparison: Comparison, turns: int, characters: int) -> Comparison:
    """Return a comparison with a bounded number of turns from the divergence on, and with bounded texts.

    In the first pair of turns that differ, the texts begin shortly before the point where they differ.
    """
    found = comparison.divergence
    if found is None:
        return comparison
    skipped = max(0, found.word - _BEFORE)
    end = found.turn + turns

    def shown(all_turns: Sequence[Turn]) -> list[Turn]:
        kept = [
            shortened(_from(turn, skipped), characters) for turn in all_turns[found.turn : found.turn + 1]
        ]
        kept += [shortened(turn, characters) for turn in all_turns[found.turn + 1 : end]]
        return [*all_turns[: found.turn], *kept]

    return Comparison(
        replace(comparison.left, turns=shown(comparison.left.turns)),
        replace(comparison.right, turns=shown(comparison.right.turns)),
        replace(found, word=found.word - skipped + (len(CUT) if skipped else 0)),
    )


def line_of(turn: Turn) -> str:
    """Return what a turn says and does as one text: arguments, text, tool calls, error."""
    given = formatting.shown_arguments(turn)
    calls = [f"→ {formatting.call(call)}" for call in turn.calls_outside_text]
    parts = [given, turn.text, *calls, formatting.error(turn)]
    if turn.role == TOOL and given and turn.text:
        parts[1] = f"→ {turn.text}"
    return " ".join(filter(None, parts))


def cut(text: str, characters: int) -> str:
    """Return the beginning of a text, with a mark if more follows."""
    return text if len(text) <= characters else text[:characters] + CUT


def _from(turn: Turn, start: int) -> Turn:
    return replace(turn, text=CUT + turn.text[start:]) if start else turn


def _bounded(value: Any, characters: int, depth: int = 0) -> Any:
    if isinstance(value, str):
        return cut(value, characters)
    if isinstance(value, (Mapping, list, tuple)) and depth >= _MAX_DEPTH:
        return CUT
    if isinstance(value, Mapping):
        items = list(value.items())[:_MAX_ITEMS]
        kept = {key: _bounded(each, characters, depth + 1) for key, each in items}
        return kept | ({CUT: f"{len(value) - _MAX_ITEMS} more"} if len(value) > _MAX_ITEMS else {})
    if isinstance(value, (list, tuple)):
        kept_items = [_bounded(each, characters, depth + 1) for each in value[:_MAX_ITEMS]]
        return kept_items + ([CUT] if len(value) > _MAX_ITEMS else [])
    return value
