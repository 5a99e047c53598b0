"""Search the texts of replies, batch after batch, for loops of repeated text and unreadable tool calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, TypeAlias

import orjson

from otel_rollout.exporting.batching import grouped
from otel_rollout.look.analysis.health.rates import Count
from otel_rollout.look.conversation.formatting import percent
from otel_rollout.otlp import messages

_MIN_LOOP: Final = 200
"""Least characters of a reply that can be repetitive: short answers may repeat words."""
_MAX_CHARACTERS: Final = 8000
"""Last characters of a reply that are searched for a loop."""
_PROBE: Final = 24
"""Characters of a probe that must recur in a reply with a loop."""
_RECURS: Final = 4
"""Least occurrences of a probe."""
_WINDOW: Final = 16
_DISTINCT: Final = 0.5
"""Share of distinct windows among all windows of 16 characters; a repetitive reply has less."""
_BUDGET: Final = 400 << 20
"""Maximum bytes of replies that are searched; with more, only a sample of trajectories is searched."""
_PARTS: Final = 1 << 16
_CALL: Final = "<tool_call>"
_CALL_END: Final = "</tool_call>"
_ASKS: Final = """output LIKE '%"arguments":%'"""
"""SQL condition that a reply asks for tool calls with arguments, which are JSON, or JSON as text."""
_IN_TAGS: Final = "<function"
"""Beginning of a call of Qwen's coder models, which is no JSON."""

_Key: TypeAlias = tuple[str, int | None, str]
"""Trace id, step and group of a trajectory."""
Marks: TypeAlias = dict[_Key, bool]
"""Trajectory → whether one of its replies has a property."""


@dataclass(frozen=True)
class Looked:
    """What the replies of a run show.

    Attributes:
        repetitive: the trajectories with a text, and whether a reply is repetitive.
        calls: the trajectories with a tool call in a reply, and whether one is unreadable.
        note: a space, and a sentence on how many trajectories were searched; empty if all were.
    """

    repetitive: Marks
    calls: Marks
    note: str


def is_repetitive(text: str) -> bool:
    """Return whether a text consists mostly of repeated text."""
    size = len(text)
    if size < _MIN_LOOP:
        return False
    text = text[-_MAX_CHARACTERS:]
    size = len(text)
    probes = (text[-_PROBE:], text[size // 2 : size // 2 + _PROBE], text[size * 3 // 4 :][:_PROBE])
    recurring = [text.count(probe) >= _RECURS for probe in probes[:2]]  # two of three must recur
    if not any(recurring) or (not all(recurring) and text.count(probes[2]) < _RECURS):
        return False
    windows = size - _WINDOW + 1
    return len({text[place : place + _WINDOW] for place in range(windows)}) < _DISTINCT * windows


def is_unparsable(text: str) -> bool:
    """Return whether a complete tool call in a text cannot be read."""
    parts = (part.partition(_CALL_END) for part in text.split(_CALL)[1:])
    return any(not _is_call(body.strip()) for body, end, _ in parts if end)


def has_broken_arguments(output: str) -> bool:
    """Return whether a reply asks for a tool call whose arguments are no JSON, and so stay a text."""
    calls = messages.reply_of(messages.read_json(output)).message.calls
    given = [call.arguments for call in calls if isinstance(call.arguments, str)]
    return any(text.strip() and not messages.is_cut(text) for text in given)


def _is_call(body: str) -> bool:
    if body.startswith(_IN_TAGS):
        return True
    try:
        call = orjson.loads(body)
    except ValueError:
        return False
    calls = call if isinstance(call, list) else [call]
    return all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in calls)


def mark(marks: Marks, trajectory: _Key, is_bad: bool) -> None:
    """Note whether one of a trajectory's replies has the property."""
    marks[trajectory] = is_bad or marks.get(trajectory, False)


def counts_of(marks: Marks) -> list[Count]:
    """Return a count for each step."""
    found = []
    for step, some in grouped(sorted(marks, key=itemgetter(0)), itemgetter(1)).items():
        bad = [key for key in some if marks[key]]
        traces, units = tuple(trace for trace, _, _ in bad), len({unit for _, _, unit in bad})
        found.append(Count(step, len(bad), len(some), traces, units, len({unit for _, _, unit in some})))
    return found


def look(
    spans_of: Callable[[str], str], size: int, batches: Callable[[str], Iterator[Any]], unit: str
) -> Looked:
    """Search the replies of a run for loops and unreadable tool calls.

    Args:
        spans_of: returns the SQL source of the spans of the trajectories for which a condition holds.
        size: bytes of all replies.
        batches: runs a query, and yields its rows in Arrow batches.
        unit: SQL for the group of a span's trajectory.
    """
    part = min(1.0, _BUDGET / size) if size else 1.0
    chosen, note = "true", ""
    if part < 1:  # the first digits of an id's hash spread evenly, whoever made the ids
        chosen = f"substr(md5(trace_id), 1, 4) < '{int(part * _PARTS):04x}'"
        note = f" Only {percent(part)} of the trajectories were looked at."
    loops: Marks = {}
    calls: Marks = {}
    replies = f"{spans_of(chosen)} AS span WHERE kind = 'LLM' AND (reply IS NOT NULL OR {_ASKS})"
    texts = f"SELECT trace_id, step, {unit}, reply, CASE WHEN {_ASKS} THEN output END FROM {replies}"  # noqa: S608
    for batch in batches(texts):
        columns = (column.to_pylist() for column in batch.columns)
        for *trajectory, reply, output in zip(*columns, strict=True):
            key: _Key = tuple(trajectory)
            if reply is not None:
                mark(loops, key, is_repetitive(reply))
            if reply is not None and _CALL in reply:
                mark(calls, key, is_unparsable(reply))
            if output is not None:
                mark(calls, key, has_broken_arguments(output))
    return Looked(loops, calls, note)
