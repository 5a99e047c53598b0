"""Read ATIF, the Agent Trajectory Interchange Format, with the results of Harbor's trials beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.look.conversation.summary import parts_of
from otel_rollout.look.dumps.dump_file import DumpFile, Record
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import (
    CALLS_ALONE,
    GIVEN,
    MODEL,
    DumpedTrajectory,
    ModelTurn,
    RolloutIdentity,
    rewards_in,
)
from otel_rollout.look.dumps.values import at, entries_of, times_between

_JSON = Mapping[str, Any]


def fits(file: DumpFile) -> bool:
    """Return whether the documents name ATIF as their schema."""
    return file.has("steps") and str(file.head[0].get("schema_version")).startswith("ATIF-v")


def read(file: DumpFile) -> Iterator[DumpedTrajectory]:
    """Yield the trajectory of each document; a file may have one document per line."""
    for place, document in file.records():
        result = _result_beside(file.path)
        steps = [step for step in document.get("steps") or () if not step.get("is_copied_context")]
        messages = [message for step in steps for message in _messages(step)]
        turns = [_turn(step) for step in steps if step.get("source") == "agent" and not _is_unasked(step)]
        facts = {
            "session_id": (session := document.get("session_id")),
            semconv.PROJECT_NAME: at(document, "extra", "project"),
            semconv.AGENT_NAME: None
            if at(document, "agent", "extra", "is_unnamed")
            else at(document, "agent", "name"),
            "model": at(document, "agent", "model_name"),
            semconv.ERROR_TYPE: at(result, "exception_info", "exception_type")
            or at(document, "extra", "error_type"),
        }
        rewards = rewards_in(at(result, "verifier_result", "rewards") or {})
        scores = {**(at(document, "extra", "scores") or {}), **rewards}
        comments = entries_of(at(document, "extra", "comments"), str)
        raised = at(result, "exception_info", "exception_message") or at(document, "extra", "error")
        error = str(raised or at(result, "exception_info", "exception_type") or "")
        times = times_between(result.get("started_at"), result.get("finished_at"))
        identity = _identity(document, result, file)
        key = (session, steps[:1]) if session else None  # a running agent adds steps to its document
        yield DumpedTrajectory(
            place,
            identity,
            messages,
            scores,
            times,
            turns,
            facts=facts,
            error=error,
            key=key,
            comments=comments,
            is_running=at(document, "extra", "state") == "running",
        )


def _identity(document: Record, result: _JSON, file: DumpFile) -> RolloutIdentity:
    """Return the identity that otel-rollout wrote into the document, else one made of the trial's task."""
    step = str(at(document, "extra", "step") or "")  # names of steps and samples may have slashes
    is_validation, parts = parts_of(str(at(document, "extra", "path") or ""), step)
    named = step or parts[0]
    rest = "/".join(parts).removeprefix(f"{named}/").split("/")
    if len(parts) > len(rest) > 1:
        known = [None if part == "-" else part for part in (named, "/".join(rest[:-1]), rest[-1])]
        return RolloutIdentity(known[0], known[1], known[2], is_validation)
    task = result.get("task_name") or document.get("session_id") or file.path.stem
    _, order = file.groups.place(task)
    rollout = str(result["trial_name"]).rpartition("__")[2] if result.get("trial_name") else order
    return RolloutIdentity(None, str(task), rollout, file.is_validation)


def _messages(step: _JSON) -> Iterator[_JSON]:
    """Yield a step's message, and the results of its tools."""
    source = step.get("source")
    names = {"id": "tool_call_id", "name": "function_name", "arguments": "arguments"}
    calls = [
        {ours: call.get(theirs) for ours, theirs in names.items()} for call in step.get("tool_calls") or ()
    ]
    others = {"reasoning_content": step.get("reasoning_content"), "tool_calls": calls}
    if _is_unasked(step):
        others[GIVEN if not calls or at(step, "extra", "is_given") else CALLS_ALONE] = True
    said = {name: value for name, value in others.items() if value}
    yield {"role": MODEL if source == "agent" else source, "content": step.get("message"), **said}
    for result in at(step, "observation", "results") or ():
        if not result.keys() - {"source_call_id"}:  # a call whose result is unknown
            continue
        ending = {name: at(result, "extra", name) for name in ("error", "error_type", "is_error")}
        yield {
            "role": "tool",
            "content": result.get("content"),
            "tool_call_id": result.get("source_call_id"),
            **ending,
        }


def _is_unasked(step: _JSON) -> bool:
    """Return whether an agent's step has no model call."""
    return step.get("llm_call_count") == 0


def _turn(step: _JSON) -> ModelTurn:
    asked, said, cached = (
        at(step, "metrics", f"{name}_tokens") for name in ("prompt", "completion", "cached")
    )
    reason, error = (at(step, "extra", name) for name in ("finish_reason", "error"))
    return ModelTurn(asked, said, cached, step.get("model_name"), reason, error=str(error or ""))


def _result_beside(path: Path) -> _JSON:
    """Return the result of Harbor's trial; empty if the document is in no trial's folder."""
    for folder in path.absolute().parents[:4]:
        result = folder / "result.json"
        if result.is_file():
            found = next((record for _, record in DumpFile(result).records()), {})
            return found if "trial_name" in found else {}
    return {}


FORMAT: Final = Format("ATIF trajectories", fits, read)
