"""Read tinker-cookbook's rollout summaries: rewards and lengths, and the texts that an environment logged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.look.dumps.dump_file import DumpFile, decoded
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import (
    MODEL,
    REWARD,
    DumpedTrajectory,
    ModelTurn,
    RolloutIdentity,
    trajectory,
)

_CALL: Final = re.compile(r"(\w[\w.-]*)\((.*)\)", re.DOTALL)
_CUT: Final = "stop/max_tokens"


def fits(file: DumpFile) -> bool:
    """Return whether the lines are summaries of rollouts."""
    return file.has("schema_version", "group_idx", "traj_idx", "total_reward", "steps")


def read(file: DumpFile) -> Iterator[tuple[int, DumpedTrajectory]]:
    """Yield the trajectories."""
    file.note("This format has no prompts; texts are what the environment logged.")
    for place, record in file.records():
        steps = [step for step in record["steps"] if isinstance(step, Mapping)]
        messages = [message for step in steps for message in _messages(step)]
        version = record.get("sampling_client_step")
        metrics = record.get("trajectory_metrics") or {}
        scores = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        yield (
            place,
            trajectory(
                RolloutIdentity(
                    record.get("iteration"),
                    record["group_idx"],
                    record["traj_idx"],
                    record.get("split") != "train",
                ),
                messages,
                {**scores, REWARD: record["total_reward"]},
                turns=_turns(steps),
                facts={
                    "final_reward": record.get("final_reward"),
                    "tags": ", ".join(map(str, record.get("tags") or ())) or None,
                    semconv.POLICY_VERSION_MIN: version,
                    semconv.POLICY_VERSION_MAX: version,
                },
            ),
        )


def _messages(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    logs = step.get("logs") or {}
    reply: dict[str, Any] = {"role": MODEL, "content": logs.get("assistant_content") or ""}
    calls = [_call(str(text)) for name, text in logs.items() if name.startswith("tool_call_")]
    yield reply | {"tool_calls": calls} if calls else reply
    for name, text in logs.items():
        if name.startswith("tool_result_"):
            yield {"role": "tool", "content": text}


def _call(text: str) -> Mapping[str, Any]:
    """Return a call of the form ``name(json)``."""
    found = _CALL.fullmatch(text)
    if found is None:
        return {"name": text, "arguments": None}
    try:
        arguments = decoded(found[2])
    except ValueError:
        arguments = found[2]
    return {"name": found[1], "arguments": arguments}


def _turns(steps: Sequence[Mapping[str, Any]]) -> list[ModelTurn]:
    turns = []
    for step in steps:
        facts: dict[str, Any] = {
            semconv.GEN_AI_USAGE_INPUT_TOKENS: step.get("ob_len"),
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: step.get("ac_len"),
        }
        if (step.get("metrics") or {}).get(_CUT):
            facts[semconv.GEN_AI_RESPONSE_FINISH_REASONS] = ["length"]
        turns.append(ModelTurn({name: value for name, value in facts.items() if value is not None}))
    return turns


FORMAT: Final = Format("tinker-cookbook summaries", fits, read)
