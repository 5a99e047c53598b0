"""Compare figures of groups, steps and runs, metrics and outcomes with the account."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.contracts import asked
from tests.contracts.account import (
    Recording,
    Sums,
    Trajectory,
    by_key,
    is_by_identity,
    mean_of,
    quantile,
    seconds_of,
    unresolved_of,
)
from tests.contracts.account_of_time import phases_of, sentence_of, timeline_of
from tests.contracts.allowed import Told, differing
from tests.contracts.made_spans import JUDGE, Made

# --- a group, a step, its time, and the checks of a run -----------------------------------------------------


def of_group(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare the largest group of `group`."""
    of = max(by_key((one.group, one) for one in recording.of_run).values(), key=len)
    told = asked.parsed(source, "group", of[0].group_path, "--run", recording.run, "--json")
    yield from of_siblings("group", told, of)


def of_siblings(way: str, told: Mapping[str, Any], of: list[Trajectory]) -> Iterator[Told]:
    """Compare the JSON of `group`."""
    found = {sibling["trace_id"]: sibling for sibling in told["siblings"]}
    assert found.keys() == {one.trace_id for one in of}
    for one in of:
        expected = {
            "state": one.state,
            "reward": one.reward,
            "model_calls": one.turns,
            "tool_calls": one.tool_calls,
            "output_tokens": one.tokens[1],
            "seconds": seconds_of(one),
        }
        yield from differing(way, one, found[one.trace_id], expected)
    tree = {"number": told["number"], "reward_mean": told["tree"]["reward_mean"]}
    expected = {"number": len(of), "reward_mean": mean_of(Sums(of).rewards)}
    yield from differing(way, of[0], tree, expected)


def of_report(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare the figures of each step of `report`."""
    told = asked.parsed(source, "report", "--run", recording.run, "--json")
    found = {
        (step["validate"], str(step["step"])): step
        for kind in ("training", "validation")
        for step in told[kind]
    }
    steps = {key[1:]: of for key, of in recording.steps().items() if key[0] == recording.run}
    assert found.keys() == steps.keys()
    for key, of in steps.items():
        step, one = found[key], of[0]
        yield from differing("report", one, step, _of_step(of))
        yield from differing("report reward", one, step["reward"], _reward(of))
        yield from differing("report seconds", one, step["seconds"], _time(of))
        yield from differing("report tools", one, {"tools": _told_tools(step)}, {"tools": _tools(of)})


def _of_step(of: list[Trajectory]) -> dict[str, object]:
    groups = [Sums(group) for group in by_key((one.group, one) for one in of).values()]
    known = (
        "trajectories",
        "failed",
        "running",
        "turns_mean",
        "tool_calls",
        "tool_errors",
        "tokens_in",
        "tokens_out",
    )
    return {
        **{name: value for name, value in Sums(of).row().items() if name in known},
        "groups": len(groups),
        "groups_compared": sum(group.spread is not None for group in groups),
        "groups_without_spread": sum(group.spread == 0 for group in groups),
        "turns_max": max(one.turns for one in of),
        "replies": sum(one.turns for one in of),
    }


def _reward(of: list[Trajectory]) -> dict[str, object]:
    rewards = Sums(of).rewards
    return {
        "count": len(rewards),
        "missing": sum(one.given is None and one.state != "running" for one in of),
        "odd": sum(one.is_odd for one in of),
        "mean": mean_of(rewards),
        "std": Sums(of).deviation,
        "min": min(rewards, default=None),
        "max": max(rewards, default=None),
        **{f"p{share}": quantile(rewards, share / 100) for share in (10, 50, 90)},
    }


def _time(of: list[Trajectory]) -> dict[str, object]:
    ended = [one for one in of if one.end is not None]
    phases = [phases_of(one) for one in ended]
    seconds = [sum(each.values()) / 1000 for each in phases]
    names = ("generate", "tool", "reward", "waiting")
    means = {name: mean_of([each[name] / 1000 for each in phases]) for name in names}
    return {
        "p50": quantile(seconds, 0.5),
        "p95": quantile(seconds, 0.95),
        "max": max(seconds, default=None),
        **means,
    }


def _tools(of: list[Trajectory]) -> dict[str, object]:
    calls: dict[str, list[Made]] = {}
    for span in (span for one in of for span in one.spans if span.kind == "TOOL"):
        calls.setdefault(span.name, []).append(span)
    is_known = Sums(of).row()["tool_errors"] is not None
    return {
        name: (len(spans), sum(bool(span.error) for span in spans) if is_known else None)
        for name, spans in calls.items()
    }


def _told_tools(step: Mapping[str, Any]) -> dict[str, object]:
    return {tool["name"]: (tool["calls"], tool["errors"]) for tool in step["tools"]}


def of_timeline(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare the time of a step of `timeline`."""
    steps = {key: of for key, of in recording.steps().items() if key[0] == recording.run}
    (_, is_validation, step), of = max(steps.items(), key=lambda pair: (len(pair[1]), str(pair[0])))
    kind = "--validation" if is_validation else "--training"
    named = "-" if step is None else step
    told = asked.parsed(source, "timeline", "--run", recording.run, "--step", named, kind, "--json")
    found = {phase["phase"]: phase["seconds"] for phase in told["phases"]} | {"wall": told["wall_seconds"]}
    expected = {name: number / 1000 for name, number in timeline_of(of).items() if number}
    yield from differing("timeline", of[0], {name: found.get(name) for name in expected}, expected)
    counts = {name: Sums(of).row()[name] for name in ("trajectories", "failed", "running")}
    yield from differing("timeline", of[0], told, counts)
    yield from _of_sentence(told, of)


def _of_sentence(told: Mapping[str, Any], of: list[Trajectory]) -> Iterator[Told]:
    """Compare the sentence on stragglers, or on the end of the step, with the rules of why.md."""
    late, message = told["stragglers"], told["message"]
    if late is None:
        found: dict[str, object] = {"is_end": message.startswith("For the last")}
        yield from differing("sentence of timeline", of[0], found, sentence_of(of, 0))
        return
    parts = sum(part["seconds"] for part in late["parts"])
    found = {"held": late["seconds"], "parts": parts, "is_fit": f" of {len(of)} " in message}
    yield from differing("sentence of timeline", of[0], found, sentence_of(of, len(late["trajectories"])))


def of_health(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare whether `health` finds scores of training, or else validation, that belong to no trajectory."""
    only = ("--only", "scores_unresolved", "--json")
    (check,) = asked.parsed(source, "health", "--run", recording.run, *only, codes=(0, 1))["checks"]
    began = min(one.begin for one in recording.of_run)
    is_validation = all(one.identity.validate for one in recording.of_run)
    lost = [
        score
        for score in unresolved_of(recording.spans)
        if score.project == recording.project
        and (score.run == recording.run or (score.run == JUDGE and score.begin >= began))
        and score.identity is not None
        and score.identity.validate == is_validation
        and score.identity.step not in _running_newest(recording)
    ]
    told = {"is_unhealthy": check["status"] == "unhealthy"}
    yield from differing("health", recording.of_run[0], told, {"is_unhealthy": bool(lost)})


def _running_newest(recording: Recording) -> set[object]:
    """Return the step of training with the greatest number, if a trajectory of it runs: scores may follow."""
    training = [one for one in recording.of_run if not one.identity.validate] or recording.of_run
    numbered = [one for one in training if isinstance(one.identity.step, int)]
    newest = max((one.identity.step for one in numbered), default=None)
    return (
        {newest} if any(one.state == "running" for one in numbered if one.identity.step == newest) else set()
    )


# --- metrics and tail sampling ------------------------------------------------------------------------------


def of_metrics(one: Trajectory) -> Iterator[Told]:
    """Compare what the MeterProvider gets of a trajectory whose spans end from the inside out."""
    measured = asked.measured(asked.children_first(one.spans))
    values: dict[str, list[float]] = {}
    for name, value, labels in measured:
        values.setdefault(str(labels.get("gen_ai.token.type", name)), []).append(value)
    given = [
        span.evaluation.value for span in one.spans if span.evaluation and span.evaluation.name == "reward"
    ]
    rewards = [float(value) for value in given if not isinstance(value, str) and math.isfinite(value)]
    ended = [] if one.milliseconds is None else [one.milliseconds / 1000]
    told = {
        "input": sum(values.get("input", [])),
        "output": sum(values.get("output", [])),
        "calls": len(values.get("gen_ai.client.operation.duration", [])),
        "tools": len(values.get("rollout.tool.duration", [])),
        "turns": values.get("rollout.trajectory.turns", []),
        "seconds": values.get("rollout.trajectory.duration", []),
        "rewards": sum(values.get("rollout.reward.count", [])),
        "reward_sum": sum(values.get("rollout.reward.sum", [])),
    }
    expected = {
        "input": one.tokens[0] or 0,
        "output": one.tokens[1] or 0,
        "calls": one.turns,
        "tools": one.tool_calls,
        "turns": [one.turns] if ended else [],
        "seconds": ended,
        "rewards": len(rewards),
        "reward_sum": sum(rewards),
    }
    yield from differing("metrics", one, told, expected)


def of_tail_sampling(one: Trajectory, recording: Recording) -> Iterator[Told]:
    """Compare the outcome by which tail sampling decides; scores by identity are the group's."""
    outcome = asked.outcome_of(span for span in recording.spans if span in one.spans)
    told = {
        name: getattr(outcome, name) for name in ("has_ended", "has_failed", "tokens", "seconds", "score")
    }
    expected: dict[str, object] = {
        "has_ended": one.end is not None,
        "has_failed": any(span.error for span in one.spans),
        "tokens": one.tokens[1] or 0,
        "seconds": seconds_of(one) or 0.0,
    }
    scores = [span for span in recording.spans if is_by_identity(span)]
    if not any(score.identity and score.identity.sample == one.identity.sample for score in scores):
        is_number = isinstance(one.given, (bool, int, float)) and not math.isnan(one.given)
        expected["score"] = float(one.given) if is_number and one.given is not None else None
    yield from differing("tail sampling", one, told, expected)
