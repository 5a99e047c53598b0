"""Write a trajectory as ATIF, the Agent Trajectory Interchange Format of Harbor (its RFC 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.base.version import VERSION
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.summary import Tokens
from otel_rollout.look.conversation.turn import MODEL, TOOL
from otel_rollout.otlp.messages import Call, Message

SCHEMA_VERSION: Final = "ATIF-v1.8"
_AGENT: Final = "agent"
_SOURCES: Final = {"system": "system", "developer": "system", "user": "user", MODEL: _AGENT}
"""Role of a message → source of a step. A tool's result belongs to the agent's step."""


def document_of(conversation: Conversation) -> dict[str, Any]:
    """Return a trajectory as an ATIF document; identity, state and scores are in its ``extra``."""
    summary = conversation.summary
    steps = _steps(conversation)
    name = summary.facts.get(semconv.short_name(semconv.AGENT_NAME)) or summary.name or _AGENT
    identity = {"path": summary.path, "project": summary.project, "experiment": summary.experiment}
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": summary.trace_id,
        "agent": {"name": str(name), "version": "unknown"},
        "steps": steps,
        "final_metrics": {**_totals(summary.tokens), "total_steps": len(steps)},
        "extra": {
            "otel_rollout": VERSION,
            "run": summary.run,
            **{key: value for key, value in identity.items() if value},
            "state": summary.state,
            "scores": {score.name: score.value for score in summary.scores},
        },
    }


def _steps(conversation: Conversation) -> list[dict[str, Any]]:
    """Return the messages as steps; token counts if each reply has a model call of its own."""
    said = conversation.longest
    calls = [turn for turn in conversation.turns if turn.is_model_call and not turn.sub_trajectory]
    counted = iter(calls if len(calls) == sum(message.role == MODEL for message in said) else ())
    steps: list[dict[str, Any]] = []
    for message in said:
        if message.role == TOOL and steps and steps[-1]["source"] == _AGENT:
            _add_result(steps[-1], message)
            continue
        step = {
            "step_id": len(steps) + 1,
            "source": _SOURCES.get(message.role, "system"),
            "message": message.text,
        }
        if step["source"] == _AGENT:
            turn = next(counted, None)
            step |= _actions(message.calls, len(steps) + 1) | (_metrics(turn.tokens) if turn else {})
        steps.append(step)
    return steps


def _actions(calls: Sequence[Call], step: int) -> dict[str, Any]:
    """Return the tool calls of a step; a call without id gets one."""
    found = [
        {
            "tool_call_id": call.id or f"{step}-{number}",
            "function_name": call.name,
            "arguments": dict(call.arguments)
            if isinstance(call.arguments, Mapping)
            else {"arguments": call.arguments},
        }
        for number, call in enumerate(calls, start=1)
    ]
    return {"tool_calls": found} if found else {}


def _add_result(step: dict[str, Any], message: Message) -> None:
    """Add a tool's result to the step that asked for it; the first without result if it has no id."""
    results: list[dict[str, Any]] = step.setdefault("observation", {"results": []})["results"]
    ids = [call["tool_call_id"] for call in step.get("tool_calls", ())]
    answered = {result.get("source_call_id") for result in results}
    open_ids = [id_ for id_ in ids if id_ not in answered]
    id_ = message.call_id if message.call_id in ids else next(iter(open_ids), None)
    named = {} if id_ is None else {"source_call_id": id_}
    results.append({**named, "content": message.text})


def _metrics(tokens: Tokens) -> dict[str, Any]:
    named = {"prompt": tokens.input, "completion": tokens.output, "cached": tokens.cached}
    found = {f"{name}_tokens": count for name, count in named.items() if count is not None}
    return {"metrics": found} if found else {}


def _totals(tokens: Tokens) -> dict[str, int]:
    return {f"total_{name}": count for name, count in _metrics(tokens).get("metrics", {}).items()}
