"""Read ART's trajectories in Parquet: ``models/<model>/trajectories/<split>/<step>.parquet``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.look.conversation.formatting import counted
from otel_rollout.look.dumps.dump_file import DumpFile, Record, in_text
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import REWARD, DumpedTrajectory, RolloutIdentity, at, entries_of


def read(file: DumpFile) -> Iterator[DumpedTrajectory]:
    """Yield the trajectories; a group without any is a row without an index."""
    empty = 0
    for place, row in file.records():
        group, rollout = row["group_index"], row["trajectory_index"]
        if rollout is None:
            empty += 1
            continue
        said = row["messages"] or _exchanged(in_text(row.get("trajectory_json")))
        if not said:
            file.note("Trajectories that ART stored as exchanges of other APIs are shown without messages.")
        identity = RolloutIdentity(file.number, group, rollout, file.is_validation)
        messages = [_message(message) for message in said]
        scores = entries_of(in_text(row.get("metrics")), int, float) | {REWARD: row["reward"]}
        yield DumpedTrajectory(place, identity, messages, scores, facts=_facts(row))
    if empty:
        file.note(f"{file.path}: {counted(empty, 'group')} without trajectories left out.")


def _message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message without nulls, and with its tool calls, which are JSON text."""
    parsed = {**message, "tool_calls": in_text(message.get("tool_calls"))}
    return {name: value for name, value in parsed.items() if value is not None}


def _exchanged(told: Any) -> list[Mapping[str, Any]]:
    """Return the messages of the last chat completion, whose request has those of the others."""
    calls = at(told, "exchanges", "chat_completions")
    if not calls:
        return []
    choices = at(calls[-1], "response", "choices") or ()
    return [*(at(calls[-1], "request", "messages") or ()), *(choice["message"] for choice in choices[:1])]


def _facts(row: Record) -> dict[str, Any]:
    told = entries_of(in_text(row.get("trajectory_json")), int)
    return entries_of(in_text(row.get("metadata")), str, int, float) | {
        semconv.POLICY_VERSION_MIN: told.get("initial_policy_version"),
        semconv.POLICY_VERSION_MAX: told.get("final_policy_version"),
    }


FORMAT: Final = Format("ART trajectories", lambda file: file.has("group_index", "trajectory_index"), read)
