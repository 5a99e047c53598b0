"""Make training data from trajectories: chat messages, and pairs of better and worse siblings."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

from otel_rollout.base import semconv
from otel_rollout.exporting.batching import chunks, grouped
from otel_rollout.look.conversation.conversation import Conversation, conversation_of
from otel_rollout.look.conversation.formatting import counted
from otel_rollout.look.conversation.summary import Summary, path_of
from otel_rollout.look.conversation.trajectories import RecordedTrajectory
from otel_rollout.look.conversation.turn import MODEL, TOOL, id_of, is_in_text
from otel_rollout.otlp.chat_messages import with_call_ids
from otel_rollout.otlp.messages import Message, as_text
from otel_rollout.table import views
from otel_rollout.table.filters import equals
from otel_rollout.table.query import Engine
from otel_rollout.table.row_set import Rows
from otel_rollout.table.spans import span_of

Example: TypeAlias = dict[str, Any]
_ROLES: Final = ("system", "developer", "user", MODEL, TOOL)
"""Roles of chat messages. Another role means that a prompt's text could not be split into messages."""
_TRACES_AT_ONCE: Final = 200
"""Trajectories whose spans are read with one query."""
_GROUP: Final = ("run_id", "project", "experiment", "group_path")
_RATED: Final = "trace_id IN (SELECT trace_id FROM finite_rewards WHERE finite_reward IS NOT NULL)"
_logger = logging.getLogger(__name__)


def chat_of(conversation: Conversation) -> list[dict[str, Any]]:
    """Return the chat messages of a trajectory in OpenAI's form; empty if they are not known.

    The messages are the request of the model call with the longest context, and its reply. Calls and results
    without an id get the ids that ATIF has.
    """
    said = conversation.longest
    is_known = conversation.is_longest_known and all(message.role in _ROLES for message in said)
    steps = accumulate(int(message.role != TOOL) for message in said)
    return with_call_ids(list(map(_chat_message, said, steps))) if is_known else []


def chat_of_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the chat messages of a trajectory from the table's rows of its spans, in any order."""
    spans = [span_of(dict(row)) for row in rows]
    named = [span for span in spans if semconv.is_of_trajectory(span.attributes)]
    # Rows from Ray come without the views: the first span has the trajectory's name.
    first = min(named, key=lambda span: (bool(span.parent_id), span.start_ns), default=None)
    summary = Summary("", path=path_of(first.attributes) if first else "")
    return chat_of(conversation_of(RecordedTrajectory(summary, spans)))


def examples(engine: Engine, trajectories: Iterable[Mapping[str, Any]]) -> Iterator[Example]:
    """Yield trajectories in their order, each with its chat messages in ``messages``.

    Each trajectory needs a ``trace_id``. Trajectories without known messages are left out; one warning in the
    log counts them.
    """
    without = 0
    for part in chunks(trajectories, _TRACES_AT_ONCE):
        chats = _chats(engine, [row["trace_id"] for row in part])
        for row in part:
            found = chats.get(row["trace_id"])
            without += not found
            if found:
                yield {**row, "messages": found}
    if without:
        number = counted(without, "trajectory")
        _logger.warning("left out: %s, because messages of the model calls are unknown", number)


def pairs(engine: Engine, trajectories: Rows, min_spread: float) -> Iterator[Example]:
    """Yield the best and worst trajectory of each group whose rewards differ.

    Among equal rewards, the first rollouts that make a pair count. The prompt is all that precedes the first
    reply. Two trajectories make no pair if a conversation is unknown, if both are equal, or if their prompts
    differ; one warning in the log counts groups without a pair. A trajectory without a dataset row is in no
    group.

    Args:
        engine: queries the table.
        trajectories: the trajectories.
        min_spread: minimum difference of the two rewards; a difference of 0 makes no pair.
    """
    rated = trajectories.where("sample_index IS NOT NULL").where(_RATED)
    rows = rated.select(*_GROUP, "rollout_n", "trace_id", "path", "reward").dicts()
    groups = grouped(rows, lambda row: tuple(row[name] for name in _GROUP)).values()
    ordered = (sorted(siblings, key=lambda row: (row["rollout_n"] or 0, row["path"])) for siblings in groups)
    chosen = ([_rewarded(each, of(map(_reward, each))) for of in (max, min)] for each in ordered)
    spreads = ((best, worst, _reward(best[0]) - _reward(worst[0])) for best, worst in chosen)
    differing = ((best, worst) for best, worst, spread in spreads if spread > 0 and spread >= min_spread)
    without = 0
    for part in chunks(differing, _TRACES_AT_ONCE // 2):
        chats = _chats(engine, [rows[0]["trace_id"] for pair in part for rows in pair])
        for best, worst in part:
            made = _pair(best[:1], worst[:1], chats)
            if made is None and len(best) + len(worst) > 2:
                made = _pair(best, worst, _chats(engine, [row["trace_id"] for row in (*best, *worst)]))
            without += made is None
            if made is not None:
                yield made
    if without:
        _logger.warning(
            "left out: %s, because the messages of the best and the worst trajectories are unknown, equal, "
            "or answer another prompt",
            counted(without, "group"),
        )


def _rewarded(rows: Sequence[Example], reward: float) -> list[Example]:
    return [row for row in rows if _reward(row) == reward]


def _pair(
    bests: Sequence[Example], worsts: Sequence[Example], chats: Mapping[str, list[Example]]
) -> Example | None:
    """Return the first pair of trajectories with equal prompts and different replies; None without any."""
    for best, worst in itertools.product(bests, worsts):
        better, worse = (chats.get(row["trace_id"]) or [] for row in (best, worst))
        shared = _prompt_length(better)
        if better and worse and better != worse and better[:shared] == worse[: _prompt_length(worse)]:
            return {
                "path": best["group_path"],
                "prompt": better[:shared],
                "chosen": better[shared:],
                "rejected": worse[shared:],
                "chosen_path": best["path"],
                "rejected_path": worst["path"],
                "chosen_reward": best["reward"],
                "rejected_reward": worst["reward"],
            }
    return None


def _prompt_length(chat: Sequence[Example]) -> int:
    """Return the number of messages before the first reply."""
    return next((index for index, message in enumerate(chat) if message["role"] == MODEL), len(chat))


def _reward(row: Example) -> float:
    return float(row["reward"])


def _chats(engine: Engine, traces: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the chat messages of each trace."""
    rows = Rows(engine, views.RECORDED).where(equals("trace_id", traces)).dicts()
    by_trace = grouped(rows, lambda row: str(row["trace_id"]))
    return {trace_id: chat_of_rows(spans) for trace_id, spans in by_trace.items()}


def _chat_message(message: Message, step: int) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.text}
    calls = [
        {
            "id": id_of(call, step, place),
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": "null" if call.arguments is None else as_text(call.arguments),
            },
        }
        for place, call in enumerate(message.calls, start=1)
        if not is_in_text(call, message.text)
    ]
    if calls:
        found["tool_calls"] = calls
    if message.call_id:
        found["tool_call_id"] = message.call_id
    return found
