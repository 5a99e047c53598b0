"""Write a trajectory as ATIF, the Agent Trajectory Interchange Format of Harbor (its RFC 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.base.version import VERSION
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.summary import Tokens
from otel_rollout.look.conversation.turn import MODEL, TOOL, Turn, id_of
from otel_rollout.otlp.messages import Call, Message

SCHEMA_VERSION: Final = "ATIF-v1.8"
_AGENT: Final = "agent"
_SOURCES: Final = {"system": "system", "developer": "system", "user": "user", MODEL: _AGENT}
"""Role of a message → source of a step. A tool's result belongs to the agent's step."""


def document_of(conversation: Conversation) -> dict[str, Any]:
    """Return a trajectory as an ATIF document; identity, state and scores are in its ``extra``."""
    summary = conversation.summary
    steps = _steps(conversation.said) or [{"step_id": 1, "source": "system", "message": summary.error}]
    agent = summary.facts.get(semconv.short_name(semconv.AGENT_NAME))
    comments = {score.name: score.comment for score in summary.scores if score.comment}
    known = {
        name: getattr(summary, name) for name in ("path", "project", "experiment", "error", "error_type")
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": summary.trace_id,
        "agent": {
            "name": str(agent or summary.name or _AGENT),
            "version": "unknown",
            **({} if agent else {"extra": {"is_unnamed": True}}),
        },
        "steps": steps,
        "final_metrics": {**_counts(summary.tokens, "total_"), "total_steps": len(steps)},
        "extra": {
            "otel_rollout": VERSION,
            "run": summary.run,
            **{key: value for key, value in known.items() if value},
            **({"step": summary.step_text} if summary.step_text else {}),
            "state": summary.state,
            "scores": {score.name: score.value for score in summary.scores},
            **({"comments": comments} if comments else {}),
        },
    }


def _steps(said: Sequence[tuple[Message, Turn]]) -> list[dict[str, Any]]:
    """Return messages as steps; a tool's result is in the agent's step that called the tool.

    A tool that the agent called before any model call gets a step of its own, from the agent.
    """
    steps: list[dict[str, Any]] = []
    for message, turn in said:
        is_asked = bool(steps) and steps[-1]["source"] == _AGENT
        is_result = message.role == TOOL and (turn.is_call or is_asked)
        source = _AGENT if is_result else _SOURCES.get(message.role, "system")
        if not (is_result and is_asked):
            said_here = "" if is_result else message.text
            steps.append({"step_id": len(steps) + 1, "source": source, "message": said_here})
        if is_result:
            _add_result(steps[-1], message, turn)
        elif source == _AGENT:
            steps[-1] |= _facts(turn)
            for call in turn.calls:
                _add_call(steps[-1], call)
    return steps


def _facts(turn: Turn) -> dict[str, Any]:
    """Return the facts of a reply beside its text; a reply that was given says that no model was called."""
    if not turn.is_call:
        return {"llm_call_count": 0, "extra": {"is_given": True}}
    ids = {"completion_token_ids": list(turn.token_ids)} if turn.token_ids else {}
    ending = {"finish_reason": turn.finish_reason, "error": turn.error}
    extra = {name: text for name, text in ending.items() if text}
    metrics = _counts(turn.tokens) | ids
    found = {"model_name": turn.model, "llm_call_count": 1, "metrics": metrics, "extra": extra}
    return {name: value for name, value in found.items() if value}


def _add_call(step: dict[str, Any], call: Call) -> str:
    """Add a tool call to a step; return its id, which is made if the call has none."""
    calls = step.setdefault("tool_calls", [])
    is_named = isinstance(call.arguments, Mapping)
    calls.append(
        {
            "tool_call_id": id_of(call, step["step_id"], len(calls) + 1),
            "function_name": call.name,
            "arguments": dict(call.arguments) if is_named else {"arguments": call.arguments},
        }
    )
    return str(calls[-1]["tool_call_id"])


def _add_result(step: dict[str, Any], message: Message, turn: Turn) -> None:
    """Add a tool's result to a step, with the id of the tool's call.

    The call is the one with the result's id, else the first call without a result. If there is neither, the
    agent called a tool that the model's reply does not name: a new call is added.
    """
    step.setdefault("llm_call_count", 0)
    results = step.setdefault("observation", {"results": []})["results"]
    ids = [call["tool_call_id"] for call in step.get("tool_calls", ())]
    answered = {result.get("source_call_id") for result in results}
    id_ = (
        message.call_id if message.call_id in ids else next((id_ for id_ in ids if id_ not in answered), None)
    )
    if turn.is_call:
        step.get("extra", {}).pop("is_given", None)  # what the agent did is more than what it was told
        id_ = id_ or _add_call(step, Call(turn.name, turn.arguments, message.call_id))
    ending = {"error": turn.error, "error_type": turn.error and turn.error_type}
    extra = (
        {"is_error": False} if turn.has_succeeded else {name: text for name, text in ending.items() if text}
    )
    known = {"source_call_id": id_, "content": message.text, "extra": extra}
    empty = () if turn.is_call and not turn.has_result else ("content",)
    results.append({name: value for name, value in known.items() if value or name in empty})


def _counts(tokens: Tokens, prefix: str = "") -> dict[str, Any]:
    named = {"prompt": tokens.input, "completion": tokens.output, "cached": tokens.cached}
    return {f"{prefix}{name}_tokens": count for name, count in named.items() if count is not None}
