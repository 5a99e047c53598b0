"""Read ``results.jsonl`` of verifiers before 0.4, and the rollout files of prime-rl of that time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.look.dumps.chat_text import prompt_of
from otel_rollout.look.dumps.dump_file import DumpFile, Record, decoded
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import (
    MODEL,
    REWARD,
    DumpedTrajectory,
    Groups,
    ModelTurn,
    RolloutIdentity,
    trajectory,
)


def fits(file: DumpFile) -> bool:
    """Return whether the lines are rollouts; 0.4 writes other lines to a file of this name."""
    return file.has("example_id", "prompt", "completion", "reward")


def read(file: DumpFile) -> Iterator[tuple[int, DumpedTrajectory]]:
    """Yield the trajectories."""
    groups = Groups()
    for place, record in file.records():
        sample = record["example_id"]
        _, order = groups.place(sample)
        asked = prompt_of(record.get("prompt"))
        said = record.get("completion")
        replies = (
            [{"role": MODEL, "content": said}] if isinstance(said, str) else [_message(m) for m in said or ()]
        )
        step = (
            file.number
            if "rollouts" in file.path.name and file.path.parent.name.startswith("step_")
            else None
        )
        if step is None and file.path.parent.name.startswith("step_"):
            step = int(file.path.parent.name.removeprefix("step_") or 0)
        yield (
            place,
            trajectory(
                RolloutIdentity(step, sample, order, file.is_validation),
                [*asked, *replies],
                _scores(record),
                turns=_turns(record, replies),
                prompt=len(asked),
                facts={name: record.get(name) for name in ("answer", "task", "stop_condition")},
                error=_error(record.get("error")),
            ),
        )


def _message(message: Any) -> Mapping[str, Any]:
    """Return a message whose tool calls are objects: the old writer made each a JSON text."""
    if not isinstance(message, Mapping):
        return {"role": "user", "content": str(message)}
    calls = message.get("tool_calls")
    if not calls:
        return {name: value for name, value in message.items() if value is not None}
    return {**message, "tool_calls": [_parsed(call) if isinstance(call, str) else call for call in calls]}


def _parsed(text: str) -> Any:
    try:
        return decoded(text)
    except ValueError:
        return {"name": "tool", "arguments": text}


def _turns(record: Record, replies: Sequence[Mapping[str, Any]]) -> list[ModelTurn]:
    """Return the model calls; of a truncated rollout, the last one has been cut."""
    count = sum(message.get("role") == MODEL for message in replies)
    turns = [ModelTurn({}) for _ in range(count)]
    if turns and record.get("is_truncated") is True:
        turns[-1] = ModelTurn({semconv.GEN_AI_RESPONSE_FINISH_REASONS: ["length"]})
    return turns


def _scores(record: Record) -> dict[str, Any]:
    metrics = record.get("metrics") or {}
    scores = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
    return {**scores, REWARD: record.get("reward")}


def _error(error: Any) -> str:
    if isinstance(error, Mapping):
        return str(error.get("error_chain_str") or error.get("error") or "")
    return str(error or "")


FORMAT: Final = Format("verifiers results", fits, read)
