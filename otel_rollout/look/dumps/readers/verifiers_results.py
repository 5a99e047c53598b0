"""Read ``results.jsonl`` of verifiers before 0.4, and the rollout files of prime-rl from that time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_rollout.look.dumps.chat_text import prompt_of
from otel_rollout.look.dumps.dump_file import DumpFile, Record
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import MODEL, REWARD, DumpedTrajectory, RolloutIdentity
from otel_rollout.look.dumps.values import entries_of, in_text

_NO_METRICS: Final = (
    "example_id", "reward", "generation_ms", "scoring_ms", "total_ms", "is_completed", "is_truncated"
)  # fmt: skip
"""Fields with a number that are no metric."""


def read(file: DumpFile) -> Iterator[DumpedTrajectory]:
    """Yield the trajectories."""
    for place, record in file.records():
        _, order = file.groups.place(record["example_id"])
        asked, said = prompt_of(record.get("prompt")), record.get("completion") or ()
        replies = [{"role": MODEL, "content": said}] if isinstance(said, str) else map(_message, said)
        yield DumpedTrajectory(
            place,
            RolloutIdentity(None, record["example_id"], order, file.is_validation),
            [*asked, *replies],
            _metrics(record) | {REWARD: record.get("reward")},
            prompt=len(asked),
            facts={name: record.get(name) for name in ("answer", "task", "stop_condition")},
            error=_error(record.get("error")),
            ending="length" if record.get("is_truncated") else str(record.get("stop_condition") or ""),
        )


def _metrics(record: Record) -> dict[str, Any]:
    """Return the metrics; verifiers 0.1 wrote them among the other fields."""
    beside = {name: value for name, value in record.items() if name not in _NO_METRICS}
    return entries_of(record.get("metrics", beside), int, float)


def _message(message: Any) -> Mapping[str, Any]:
    """Return a message with its tool calls as objects: verifiers wrote each as JSON text."""
    if not isinstance(message, Mapping):
        return {"role": "user", "content": str(message)}
    found = {name: value for name, value in message.items() if value is not None}
    texts = map(in_text, message.get("tool_calls") or ())
    calls = [call if isinstance(call, Mapping) else {"name": "tool", "arguments": call} for call in texts]
    return found | {"tool_calls": calls} if calls else found


def _error(error: Any) -> str:
    if isinstance(error, Mapping):
        return str(error.get("error_chain_str") or error.get("error") or "")
    return str(error or "")


# 0.4 writes other lines to a file of this name.
FORMAT: Final = Format("verifiers results", lambda file: file.has("example_id", "completion", "reward"), read)
