"""Read ART's trajectories in Parquet: ``models/<model>/trajectories/<split>/<step>.parquet``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.look.dumps.dump_file import DumpFile, Record, decoded
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import REWARD, DumpedTrajectory, RolloutIdentity, trajectory


def fits(file: DumpFile) -> bool:
    """Return whether the rows have ART's columns."""
    return file.has("group_index", "trajectory_index", "reward", "messages")


def read(file: DumpFile) -> Iterator[tuple[int, DumpedTrajectory]]:
    """Yield the trajectories; a group without any is a row without an index."""
    for place, row in file.records():
        if row["trajectory_index"] is None:
            file.note("Groups without trajectories are left out.")
            continue
        told = _json(row.get("trajectory_json")) or {}
        group, rollout = row["group_index"], row["trajectory_index"]
        metrics = _json(row.get("metrics")) or {}
        scores = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        if not row["messages"]:
            file.note("Trajectories that ART stored as exchanges are shown without their messages.")
        yield (
            place,
            trajectory(
                RolloutIdentity(file.number, group, rollout, file.is_validation),
                [_message(message) for message in row["messages"] or ()],
                {**scores, REWARD: row["reward"]},
                facts={**_facts(row), **_versions(told)},
            ),
        )


def _message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message without nulls, and with its tool calls, which are JSON text."""
    found = {name: value for name, value in message.items() if value is not None}
    return {**found, "tool_calls": calls} if (calls := _json(found.get("tool_calls"))) else found


def _facts(row: Record) -> dict[str, Any]:
    metadata = _json(row.get("metadata")) or {}
    return {name: value for name, value in metadata.items() if isinstance(value, (str, int, float))}


def _versions(told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        semconv.POLICY_VERSION_MIN: told.get("initial_policy_version"),
        semconv.POLICY_VERSION_MAX: told.get("final_policy_version"),
    }


def _json(value: Any) -> Any:
    """Return a value that may be JSON text; None for other text."""
    try:
        return decoded(value) if isinstance(value, str) and value else value
    except ValueError:
        return None


FORMAT: Final = Format("ART trajectories", fits, read)
