"""Read tinker-cookbook's rollout summaries: rewards, lengths, and texts that an environment logged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_rollout.look.dumps.dump_file import DumpFile
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import MODEL, REWARD, DumpedTrajectory, ModelTurn, RolloutIdentity
from otel_rollout.look.dumps.values import entries_of, in_text

_CALL: Final = re.compile(r"(\w[\w.-]*)\((.*)\)", re.DOTALL)
_STOP: Final = "stop/"
"""Prefix of the metric that tells why a reply ended."""


def read(file: DumpFile) -> Iterator[DumpedTrajectory]:
    """Yield the trajectories."""
    file.note("This format has no prompts; texts are what the environment logged.")
    for place, record in file.records():
        steps = [step for step in record["steps"] if isinstance(step, Mapping)]
        group, rollout = record["group_idx"], record["traj_idx"]
        version = record.get("sampling_client_step")
        yield DumpedTrajectory(
            place,
            RolloutIdentity(record.get("iteration"), group, rollout, record.get("split") != "train"),
            [message for step in steps for message in _messages(step)],
            entries_of(record.get("trajectory_metrics"), int, float) | {REWARD: record["total_reward"]},
            turns=[_turn(step) for step in steps],
            facts={
                "final_reward": record.get("final_reward"),
                "tags": ", ".join(map(str, record.get("tags") or ())) or None,
            },
            versions=(version, version),
        )


def _messages(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    logs = step.get("logs") or {}
    calls = [_call(str(text)) for name, text in logs.items() if name.startswith("tool_call_")]
    said = {"content": logs.get("assistant_content"), "tool_calls": calls or None}
    yield {"role": MODEL, **{name: value for name, value in said.items() if value is not None}}
    for name, text in logs.items():
        if name.startswith("tool_result_"):
            yield {"role": "tool", "content": text}


def _call(text: str) -> Mapping[str, Any]:
    """Parse a tool call of the form ``name(json)``."""
    found = _CALL.fullmatch(text)
    return {"name": found[1], "arguments": in_text(found[2])} if found else {"name": text}


def _turn(step: Mapping[str, Any]) -> ModelTurn:
    metrics = entries_of(step.get("metrics"), int, float)
    reasons = [
        name.removeprefix(_STOP) for name, is_so in metrics.items() if name.startswith(_STOP) and is_so
    ]
    return ModelTurn(step.get("ob_len"), step.get("ac_len"), reason=", ".join(reasons))


FORMAT: Final = Format(
    "tinker-cookbook summaries", lambda file: file.has("group_idx", "traj_idx", "steps"), read
)
