"""Read ART's trajectories in Parquet: ``models/<model>/trajectories/<split>/<step>.parquet``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_rollout.look.conversation.formatting import counted
from otel_rollout.look.dumps.dump_file import DumpFile
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import MODEL, REWARD, DumpedTrajectory, ModelTurn, RolloutIdentity
from otel_rollout.look.dumps.values import at, entries_of, in_text, times_between


def read(file: DumpFile) -> Iterator[DumpedTrajectory]:
    """Yield the trajectories; a row without a trajectory's index is a group without trajectories."""
    empty = 0
    for place, row in file.records():
        group, rollout = row["group_index"], row["trajectory_index"]
        if rollout is None:
            empty += 1
            continue
        told = in_text(row.get("trajectory_json"))
        calls = at(told, "exchanges", "chat_completions") or ()
        said = row["messages"] or _exchanged(calls)
        if not said:
            file.note("Trajectories that ART stored as exchanges of other APIs are shown without messages.")
        identity = RolloutIdentity(file.number, group, rollout, file.is_validation)
        messages = [_message(message) for message in said]
        scores = entries_of(in_text(row.get("metrics")), int, float) | {REWARD: row["reward"]}
        replies = [each for each in at(told, "messages_and_choices") or () if _is_reply(each)]
        turns = [_turn(call) for call in calls or ({"response": {"choices": [each]}} for each in replies)]
        if len(turns) != sum(map(_is_reply, messages)):
            turns = []
        known = [turn.times for turn in turns if turn.times]
        times = (known[0][0], known[-1][1]) if known else None
        facts = entries_of(in_text(row.get("metadata")), str, int, float)
        versions = (at(told, "initial_policy_version"), at(told, "final_policy_version"))
        yield DumpedTrajectory(
            place, identity, messages, scores, times, turns, facts=facts, versions=versions
        )
    if empty:
        file.note(f"{file.path}: {counted(empty, 'group')} without trajectories left out.")


def _message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message without nulls, with its tool calls decoded from JSON text."""
    parsed = {**message, "tool_calls": in_text(message.get("tool_calls"))}
    return {name: value for name, value in parsed.items() if value is not None}


def _is_reply(entry: Mapping[str, Any]) -> bool:
    return entry.get("role") == MODEL or "message" in entry


def _turn(call: Mapping[str, Any]) -> ModelTurn:
    """Return the model call of an exchange; if only a choice is known, only its finish reason is set."""
    response = call.get("response")
    usage, choice = at(response, "usage"), next(iter(at(response, "choices") or ()), None)
    return ModelTurn(
        at(usage, "prompt_tokens"),
        at(usage, "completion_tokens"),
        at(usage, "prompt_tokens_details", "cached_tokens"),
        at(response, "model"),
        at(choice, "finish_reason"),
        times_between(call.get("start_time"), call.get("end_time")),
    )


def _exchanged(calls: Any) -> list[Mapping[str, Any]]:
    """Return the messages of the last chat completion; its request repeats the earlier messages."""
    if not calls:
        return []
    choices = at(calls[-1], "response", "choices") or ()
    return [*(at(calls[-1], "request", "messages") or ()), *(choice["message"] for choice in choices[:1])]


FORMAT: Final = Format("ART trajectories", lambda file: file.has("group_index", "trajectory_index"), read)
