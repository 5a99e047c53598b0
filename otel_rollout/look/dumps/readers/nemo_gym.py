"""Read the rollouts that NeMo Gym collects: a task and a Responses object per line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.look.dumps.chat_text import prompt_of
from otel_rollout.look.dumps.dump_file import DumpFile, Record
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import (
    MODEL,
    REWARD,
    DumpedTrajectory,
    ModelTurn,
    RolloutIdentity,
    trajectory,
)

_CUT: Final = {semconv.GEN_AI_RESPONSE_FINISH_REASONS: ["length"]}


def fits(file: DumpFile) -> bool:
    """Return whether the lines are rollouts, or failures of them."""
    return file.has("_ng_task_index", "_ng_rollout_index")


def read(file: DumpFile) -> Iterator[tuple[int, DumpedTrajectory]]:
    """Yield the trajectories; a line without a response is a failure, and has no reward."""
    for place, record in file.records():
        sample, rollout = record["_ng_task_index"], record["_ng_rollout_index"]
        if attempt := record.get("_ng_attempt_index"):
            rollout = f"{rollout}.{attempt}"
        response = record.get("response")
        asked = prompt_of((record.get("responses_create_params") or {}).get("input"))
        replies = _messages(response.get("output") or ()) if isinstance(response, Mapping) else []
        count = sum(message["role"] == MODEL for message in replies)
        turns = [ModelTurn({}) for _ in range(count)]
        details = (response.get("incomplete_details") if isinstance(response, Mapping) else None) or {}
        if turns and details.get("reason") == "max_output_tokens":
            turns[-1] = ModelTurn(_CUT)
        yield (
            place,
            trajectory(
                RolloutIdentity(None, sample, rollout, file.is_validation),
                [*asked, *replies],
                _scores(record),
                turns=turns,
                prompt=len(asked),
                facts={"failure_kind": record.get("failure_kind"), "mask_sample": record.get("mask_sample")},
                error=str(record.get("failure_reason") or record.get("_ng_failure_class") or ""),
            ),
        )


def _scores(record: Record) -> dict[str, Any]:
    """Return the reward; one that the environment calls invalid is none."""
    return {} if record.get("mask_sample") else {REWARD: record.get("reward")}


def _messages(output: Any) -> list[dict[str, Any]]:
    """Return the items of a response as messages: a reply goes on until a tool's result."""
    found: list[dict[str, Any]] = []
    for item in output:
        if item.get("type") == "function_call_output":
            found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
            continue
        if item.get("type") == "message" and item.get("role", MODEL) != MODEL:
            found.append({"role": item["role"], "content": _text(item.get("content"))})
            continue
        if not found or found[-1]["role"] != MODEL:
            found.append({"role": MODEL, "content": ""})
        reply = found[-1]
        if item.get("type") == "function_call":
            call = {"id": item.get("call_id"), "type": "function"}
            call["function"] = {"name": item.get("name"), "arguments": item.get("arguments")}
            reply.setdefault("tool_calls", []).append(call)
        elif item.get("type") == "reasoning":
            reply["reasoning_content"] = _text(item.get("content") or item.get("summary"))
        else:
            reply["content"] += _text(item.get("content"))
    return found


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "")


FORMAT: Final = Format("NeMo Gym rollouts", fits, read)
