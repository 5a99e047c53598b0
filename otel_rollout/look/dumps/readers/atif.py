"""Read ATIF, the Agent Trajectory Interchange Format, with the results of Harbor's trials beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.look.dumps.dump_file import DumpFile, Record
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import (
    MODEL,
    REWARD,
    DumpedTrajectory,
    Groups,
    ModelTurn,
    RolloutIdentity,
    Times,
    trajectory,
)

_JSON = Mapping[str, Any]
_VERSION: Final = "ATIF-v"
_PATH_PARTS: Final = 3


def fits(file: DumpFile) -> bool:
    """Return whether the documents name ATIF as their schema."""
    return file.has("schema_version", "steps") and str(file.head[0].get("schema_version")).startswith(
        _VERSION
    )


def read(file: DumpFile) -> Iterator[tuple[int, DumpedTrajectory]]:
    """Yield the trajectories of a document, or of one in each line."""
    groups = Groups()
    for place, document in file.records():
        result = _result_beside(file.path)
        steps = [step for step in document.get("steps") or () if not step.get("is_copied_context")]
        messages: list[_JSON] = []
        turns: list[ModelTurn] = []
        for step in steps:
            messages += _messages(step)
            if step.get("source") == "agent":
                turns.append(_turn(step))
        agent = document.get("agent") or {}
        extra = document.get("extra") or {}
        facts = {
            "session_id": document.get("session_id"),
            semconv.AGENT_NAME: agent.get("name"),
            "model": agent.get("model_name"),
        }
        scores = {**(extra.get("scores") or {}), **_rewards(result)}
        raised = result.get("exception_info") or {}
        error = ": ".join(
            str(raised[key]) for key in ("exception_type", "exception_message") if raised.get(key)
        )
        times = _times(result.get("started_at"), result.get("finished_at"))
        identity = _identity(document, result, file, groups)
        yield place, trajectory(identity, messages, scores, times, turns=turns, facts=facts, error=error)


def _identity(document: Record, result: _JSON, file: DumpFile, groups: Groups) -> RolloutIdentity:
    """Return what otel-rollout wrote into the document, else the trial's task."""
    path = str((document.get("extra") or {}).get("path") or "")
    parts = path.removeprefix("validation/").split("/")
    if len(parts) == _PATH_PARTS:
        step, sample, rollout = (int(part) if part.isdecimal() else part for part in parts)
        return RolloutIdentity(step, sample, rollout, path != "/".join(parts))
    task = result.get("task_name") or document.get("session_id") or file.path.stem
    trial = result.get("trial_name")
    _, order = groups.place(task)
    rollout = str(trial).rpartition("__")[2] if trial else order
    return RolloutIdentity(None, str(task), rollout, file.is_validation)


def _messages(step: _JSON) -> Iterator[_JSON]:
    """Yield a step's message, and the results of its tools."""
    source = step.get("source")
    message: dict[str, Any] = {"role": MODEL if source == "agent" else source, "content": step.get("message")}
    if step.get("reasoning_content"):
        message["reasoning_content"] = step["reasoning_content"]
    if calls := step.get("tool_calls"):
        message["tool_calls"] = [
            {
                "id": call.get("tool_call_id"),
                "type": "function",
                "function": {"name": call.get("function_name"), "arguments": call.get("arguments")},
            }
            for call in calls
        ]
    yield message
    for result in (step.get("observation") or {}).get("results") or ():
        yield {"role": "tool", "tool_call_id": result.get("source_call_id"), "content": result.get("content")}


def _turn(step: _JSON) -> ModelTurn:
    metrics = step.get("metrics") or {}
    counts = {
        semconv.GEN_AI_USAGE_INPUT_TOKENS: metrics.get("prompt_tokens"),
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: metrics.get("completion_tokens"),
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: metrics.get("cached_tokens"),
        semconv.GEN_AI_REQUEST_MODEL: step.get("model_name"),
    }
    return ModelTurn({name: value for name, value in counts.items() if value is not None})


def _result_beside(path: Path) -> _JSON:
    """Return the result of Harbor's trial; empty if the document is in no trial's folder."""
    for folder in path.absolute().parents[:4]:
        result = folder / "result.json"
        if result.is_file():
            found = next((record for _, record in DumpFile(result).records()), {})
            return found if "trial_name" in found else {}
    return {}


def _rewards(result: _JSON) -> dict[str, Any]:
    rewards = (result.get("verifier_result") or {}).get("rewards") or {}
    found = {name: value for name, value in rewards.items() if isinstance(value, (int, float))}
    only = next(iter(found.values())) if len(found) == 1 else None
    return found if REWARD in found or only is None else {**found, REWARD: only}


def _times(start: Any, end: Any) -> Times | None:
    try:
        begun, ended = (datetime.fromisoformat(str(stamp).replace("Z", "+00:00")) for stamp in (start, end))
        return round(begun.timestamp() * 1e9), round(ended.timestamp() * 1e9)
    except ValueError:
        return None


FORMAT: Final = Format("ATIF trajectories", fits, read)
