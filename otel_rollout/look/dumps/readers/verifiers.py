"""Read ``traces.jsonl`` of verifiers 0.4 and prime-rl: an episode per line, with a graph of messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.look.dumps.dump_file import DumpFile, Record
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import (
    GIVEN,
    MODEL,
    REWARD,
    DumpedTrajectory,
    ModelTurn,
    RolloutIdentity,
    Times,
)
from otel_rollout.look.dumps.values import at, entries_of

_JSON = Mapping[str, Any]


def read(file: DumpFile) -> Iterator[DumpedTrajectory]:
    """Yield a trajectory for each agent of an episode, or one without messages if it has no agents."""
    whole = file.path.parent.with_name("all") / file.path.name
    if file.path.parent.name == "effective" and whole.exists():
        file.note(f"{file.path} repeats episodes of {whole}: it is left out.")
        return
    for place, episode in file.records():
        traces = [trace for trace in episode.get("traces") or () if isinstance(trace, Mapping)]
        for number, trace in enumerate(traces or [{}]):
            yield _trajectory(place, episode, trace, _identity(episode, file, number))


def _identity(episode: Record, file: DumpFile, agent: int) -> RolloutIdentity:
    index, group = at(episode, "task", "data", "idx"), str(at(episode, "group", "id") or "")
    sample = at(episode, "task", "key") if index is None else index
    step, kind = at(episode, "run", "work", "step"), at(episode, "run", "work", "type")
    kind = kind or at(episode, "run", "type")
    number, order = file.groups.place(agent, step, kind, sample if sample is not None else group)
    is_validation = file.is_validation if kind is None else kind == "eval"
    rollout: int | str = order if agent == 0 else f"{order}.{agent}"
    return RolloutIdentity(step, number if sample is None else sample, rollout, is_validation, group)


def _trajectory(place: int, episode: Record, trace: _JSON, identity: RolloutIdentity) -> DumpedTrajectory:
    branch, nodes = _branches(trace), trace.get("nodes") or []
    calls = {call.get("node"): call for call in trace.get("calls") or () if isinstance(call, Mapping)}
    messages, turns = [], []
    before = None
    for number in branch:
        node = nodes[number]
        message = node.get("message") or {}
        if message.get("role") == MODEL and not node.get("sampled"):
            message = {**message, GIVEN: True}
        messages.append(message)
        if message.get("role") == MODEL and not message.get(GIVEN):
            parent = node.get("parent")
            is_new = before is not None and not _is_below(nodes, parent, before)
            turns.append(_turn(calls.get(number) or {}, node, is_new))
            before = number
    facts = {
        "episode": episode.get("id"),
        "environment": at(episode, "env", "id"),
        "stop_condition": trace.get("stop_condition"),
        semconv.AGENT_NAME: at(trace, "agent", "name"),
    }
    policy = at(episode, "run", "work", "policy")
    first_error = next(iter((trace or episode).get("errors") or ()), "")
    facts[semconv.ERROR_TYPE], error = at(first_error, "type"), _message_of(first_error)
    scores, times = _scores(trace), _times(trace, turns)
    versions = (at(policy, "start"), at(policy, "end"))
    return DumpedTrajectory(
        place, identity, messages, scores, times, turns, facts=facts, versions=versions, error=error
    )


def _branches(trace: _JSON) -> list[int]:
    """Return the indices of the graph's nodes, branch by branch: each node once, parents before children."""
    nodes = trace.get("nodes") or []
    parents = {node.get("parent") for node in nodes}
    found: dict[int, None] = {}
    for leaf in (number for number in range(len(nodes)) if number not in parents):
        path, at = [], leaf
        while at is not None and at not in found and at not in path and 0 <= at < len(nodes):
            path.append(at)
            at = nodes[at].get("parent")
        found |= dict.fromkeys(reversed(path))
    return list(found)


def _is_below(nodes: Sequence[_JSON], at: int | None, ancestor: int) -> bool:
    """Return whether a node is ``ancestor`` or below it; the loop ends even if the graph has a cycle."""
    for _ in nodes:
        if at is None or at == ancestor:
            break
        at = nodes[at].get("parent")
    return at == ancestor


def _turn(call: _JSON, node: _JSON, is_new: bool) -> ModelTurn:
    usage = call.get("usage")
    cached, asked = at(usage, "cached_input_tokens"), at(usage, "prompt_tokens")
    asked = None if asked is None else asked + (cached or 0)
    said, times, error = at(usage, "completion_tokens"), span_of(call.get("time") or {}), call.get("error")
    model, reason = call.get("model"), call.get("finish_reason")
    return ModelTurn(asked, said, cached, model, reason, times, _message_of(error), is_new)


def span_of(time: _JSON) -> Times | None:
    """Return start and end of a phase in ns; None if a time is missing or invalid."""
    start, end = time.get("start"), time.get("end")
    if not isinstance(start, (int, float)) or not isinstance(end, (int, float)) or not 0 < start <= end:
        return None
    return round(start * 1e9), round(end * 1e9)


def _times(trace: _JSON, turns: Sequence[ModelTurn]) -> Times | None:
    """Return when the trace ran: from its first phase or call to its last one."""
    phases = [span_of(phase) for phase in (trace.get("timing") or {}).values() if isinstance(phase, Mapping)]
    known = [times for times in (*phases, *(turn.times for turn in turns)) if times]
    return (min(start for start, _ in known), max(end for _, end in known)) if known else None


def _scores(trace: _JSON) -> dict[str, Any]:
    """Return the metrics, the parts of the reward, and the reward itself, which is their weighted sum."""
    parts = entries_of(trace.get("rewards"), Mapping)
    scores = {name: _score(part.get("score")) for name, part in parts.items()}
    weighted = [_score(part.get("score", 0.0)) * part.get("weight", 1.0) for part in parts.values()]
    total = {REWARD: sum(weighted) if weighted else None}
    return entries_of({**(trace.get("metrics") or {}), **scores}, int, float) | total


def _score(value: Any) -> Any:
    """Return the score of a part; NaN and infinities may be texts."""
    return float(value) if isinstance(value, str) else value


def _message_of(error: Any) -> str:
    if isinstance(error, Mapping):
        return ": ".join(str(error[key]) for key in ("type", "message") if error.get(key))
    return str(error or "")


FORMAT: Final = Format("verifiers traces", lambda file: file.has("env", "task", "traces"), read)
