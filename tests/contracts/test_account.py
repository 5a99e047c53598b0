"""Each way of asking for a fact gives that of an account in plain Python, for generated recordings.

The account (``tests.contracts.account``) was written from docs/ alone. What may differ is in ``ALLOWED``, with
its reason. `make promises ARGS=--hypothesis-profile=nightly` checks many recordings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.contracts import asked
from tests.contracts.account import (
    Sums,
    Trajectory,
    is_by_identity,
    mean_of,
    once,
    phases_of,
    quantile,
    timeline_of,
    trajectories_of,
    unresolved_of,
)
from tests.contracts.allowed import Told, differing, is_allowed
from tests.contracts.generated_spans import JUDGE, Made, recorded_by, recordings

_IS_NIGHTLY = settings.default is not None and settings.default.max_examples >= 200
_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]
_COMMANDS = settings(
    max_examples=330 if _IS_NIGHTLY else 1,
    phases=tuple(Phase) if _IS_NIGHTLY else (Phase.explicit,),
    suppress_health_check=_CHECKS,
)
"""A command takes a second. `make test` asks of one recording; a nightly run of 2,000, six in a table."""
_IN_MEMORY = settings(max_examples=2_000 if _IS_NIGHTLY else 25, suppress_health_check=_CHECKS)


class Recording:
    """A recording, and what the account says of it."""

    def __init__(self, spans: list[Made]) -> None:
        self.spans = spans
        self.trajectories = trajectories_of(spans)
        newest = max(self.trajectories, key=lambda one: one.trace_id)
        self.run, self.project = newest.run, newest.project
        self.of_run = [one for one in self.trajectories if one.run == self.run]

    def groups(self) -> dict[tuple[Any, ...], list[Trajectory]]:
        """Return the trajectories of each group."""
        return _by((one.group, one) for one in self.trajectories)

    def steps(self) -> dict[tuple[Any, ...], list[Trajectory]]:
        """Return the trajectories of each step."""
        return _by((one.step, one) for one in self.trajectories)


def _by(pairs: Iterable[tuple[tuple[Any, ...], Trajectory]]) -> dict[tuple[Any, ...], list[Trajectory]]:
    found: dict[tuple[Any, ...], list[Trajectory]] = {}
    for key, one in pairs:
        found.setdefault(key, []).append(one)
    return found


# --- lists --------------------------------------------------------------------------------------------------


def of_list(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare each trajectory of `list`."""
    found = {row["trace_id"]: row for row in asked.rows(source, "list")}
    assert found.keys() == {one.trace_id for one in recording.trajectories}
    for one in recording.trajectories:
        expected = {
            "run_id": one.run,
            "path": one.path,
            "group_path": one.group_path,
            "state": one.state,
            "error_type": one.error or None,
            "seconds": _seconds(one),
            "turns": one.turns,
            "tool_calls": one.tool_calls,
            "tool_errors": one.tool_errors,
            "tokens_in": one.tokens[0],
            "tokens_out": one.tokens[1],
            "reward": one.reward,
            "reward_label": _label(one),
        }
        yield from differing("list", one, found[one.trace_id], expected)


def _seconds(one: Trajectory) -> float | None:
    return None if one.milliseconds is None else one.milliseconds / 1000


def _label(one: Trajectory) -> str | None:
    return str(one.given) if isinstance(one.given, (str, bool)) or one.is_odd else None


def of_groups(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare each group of `groups`."""
    found = {row["run_id"] + row["path"]: row for row in asked.rows(source, "groups")}
    groups = recording.groups().values()
    assert found.keys() == {of[0].run + of[0].group_path for of in groups}
    for of in groups:
        told = found[of[0].run + of[0].group_path]
        sums = Sums(of)
        yield from differing("groups", of[0], told, {**sums.row(), "reward_spread": sums.spread})


def of_steps(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare each step of `steps`."""
    found = {(row["run_id"], row["validate"], row["step"]): row for row in asked.rows(source, "steps")}
    steps = recording.steps()
    assert found.keys() == steps.keys()
    for key, of in steps.items():
        sums = Sums(of)
        groups = len({one.group for one in of})
        expected = {**sums.row(), "groups": groups, "reward_std": sums.deviation}
        yield from differing("steps", of[0], found[key], expected)


def of_show(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare the list of `show`, and one trajectory's head."""
    table = asked.cells(asked.printed(source, "show", "--run", recording.run))
    found = {row[1]: row for row in table}
    assert found.keys() == {one.trace_id for one in recording.of_run}
    for one in recording.of_run:
        path, _, reward, state, took, *tokens = found[one.trace_id]
        told = {"path": path, "reward": reward, "state": state, "took": took, "tokens": tokens}
        counts = ["" if count is None else str(count) for count in one.tokens]
        shown = {"reward": _shown(one), "took": _took(one), "tokens": counts}
        yield from differing("show", one, told, {"path": one.path, "state": one.state, **shown})
    one = recording.of_run[len(recording.spans) % len(recording.of_run)]
    head = asked.printed(source, "show", one.trace_id, "--run", recording.run)
    yield from differing("show ID", one, _head(" ".join(head.split())), _figures(one))


def _shown(one: Trajectory) -> str:
    if one.given is None:
        return ""
    return str(one.given).lower() if isinstance(one.given, bool) else str(_number(one.given))


def _number(value: float | str) -> float | str:
    return value if isinstance(value, str) else float(value)


def _took(one: Trajectory) -> str:
    length = one.milliseconds
    return "" if length is None else f"{length:.1f} ms" if length < 10 else f"{length} ms"


def _head(text: str) -> dict[str, object]:
    """Read the figures at the head of a trajectory."""
    found = {}
    for name, pattern in _HEAD.items():
        match = re.search(pattern, text)
        found[name] = match.group(1) if match else None
    return found


_HEAD = {
    "took": r"took (\S+ ms|not ended)",
    "turns": r"(\d+) model calls?",
    "tool_calls": r"(\d+) tool calls?",
    "tokens_out": r"(\d+) tokens? written",
}


def _figures(one: Trajectory) -> dict[str, object]:
    written = None if one.tokens[1] is None else str(one.tokens[1])
    took = _took(one) or "not ended"
    return {"took": took, "turns": str(one.turns), "tool_calls": str(one.tool_calls), "tokens_out": written}


# --- a group, a step, its time, and the checks of a run -----------------------------------------------------


def of_group(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare the largest group of `group`."""
    of = max(_by((one.group, one) for one in recording.of_run).values(), key=len)
    told = asked.parsed(source, "group", of[0].group_path, "--run", recording.run, "--json")
    found = {sibling["trace_id"]: sibling for sibling in told["siblings"]}
    assert found.keys() == {one.trace_id for one in of}
    for one in of:
        expected = {
            "state": one.state,
            "reward": one.reward,
            "model_calls": one.turns,
            "tool_calls": one.tool_calls,
            "output_tokens": one.tokens[1],
            "seconds": _seconds(one),
        }
        yield from differing("group", one, found[one.trace_id], expected)
    tree = {"number": told["number"], "reward_mean": told["tree"]["reward_mean"]}
    expected = {"number": len(of), "reward_mean": mean_of(Sums(of).rewards)}
    yield from differing("group", of[0], tree, expected)


def of_report(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare the figures of each step of `report`."""
    told = asked.parsed(source, "report", "--run", recording.run, "--json")
    found = {
        (step["validate"], step["step"]): step for kind in ("training", "validation") for step in told[kind]
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
    groups = [Sums(group) for group in _by((one.group, one) for one in of).values()]
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
        "missing": sum(one.reward is None and not one.is_odd and one.state != "running" for one in of),
        "odd": sum(one.is_odd for one in of),
        "mean": mean_of(rewards),
        "std": Sums(of).deviation,
        "min": min(rewards, default=None),
        "max": max(rewards, default=None),
        **{f"p{share}": quantile(rewards, share / 100) for share in (10, 50, 90)},
    }


def _time(of: list[Trajectory]) -> dict[str, object]:
    ended = [one for one in of if one.end is not None]
    seconds = Sums(of).seconds
    phases = [phases_of(one) for one in ended]
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
    return {name: (len(spans), sum(bool(span.error) for span in spans)) for name, spans in calls.items()}


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


def of_health(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare whether `health` finds scores that belong to no trajectory."""
    only = ("--only", "scores_unresolved", "--json")
    (check,) = asked.parsed(source, "health", "--run", recording.run, *only, codes=(0, 1))["checks"]
    began = min(one.begin for one in recording.of_run)
    lost = [
        score
        for score in unresolved_of(recording.spans)
        if score.project == recording.project
        and (score.run == recording.run or (score.run == JUDGE and score.begin >= began))
        and score.identity is not None
        and score.identity.step not in _running_newest(recording)
    ]
    told = {"is_unhealthy": check["status"] == "unhealthy"}
    yield from differing("health", recording.of_run[0], told, {"is_unhealthy": bool(lost)})


def _running_newest(recording: Recording) -> set[object]:
    """Return the newest step of training, if a trajectory of it runs: its scores may still find theirs."""
    training = [one for one in recording.of_run if not one.identity.validate] or recording.of_run
    newest = max(str(one.identity.step) for one in training)
    of_step = [one for one in training if str(one.identity.step) == newest]
    return {one.identity.step for one in of_step if any(one.state == "running" for one in of_step)}


# --- pages --------------------------------------------------------------------------------------------------


def of_pages(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare the list of trajectories, the page of one and that of its group."""
    one = recording.of_run[len(recording.spans) % len(recording.of_run)]
    with asked.Pages(source) as pages:
        listed = pages.body("/trajectories", one.run, one.project)
        alone = asked.words(pages.body("/trajectory", one.run, one.project, name=one.trace_id))
        group = asked.words(pages.body("/group", one.run, one.project, name=one.group_path))
    ids = re.findall(r'<td><a href="/trajectory[^"]*name=([0-9a-f]{32})"', listed)
    found = dict(zip(ids, asked.page_rows(listed), strict=True))
    assert found.keys() == {one.trace_id for one in recording.of_run}
    for each in recording.of_run:
        yield from differing(
            "page of trajectories", each, _page_row(found[each.trace_id]), _page_figures(each)
        )
    yield from differing("page of a trajectory", one, _head(alone), _figures(one))
    siblings = re.search(r"siblings (\d+)(?:, (\d+) failed)?(?:, (\d+) running)?", group)
    assert siblings is not None, group
    row = Sums(recording.groups()[one.group]).row()
    told = dict(
        zip(("trajectories", "failed", "running"), (int(n or 0) for n in siblings.groups()), strict=True)
    )
    yield from differing("page of a group", one, told, {name: row[name] for name in told})


def _page_row(cells: list[str]) -> dict[str, object]:
    names = ("path", "state", "reward", "turns", "tool_calls", "tool_errors", "tokens_out", "took")
    return dict(zip(names, cells, strict=False))


def _page_figures(one: Trajectory) -> dict[str, object]:
    numbers = {"turns": one.turns, "tool_calls": one.tool_calls, "tool_errors": one.tool_errors}
    return {
        "path": one.path,
        "state": one.state,
        "reward": _shown(one),
        **{name: str(number) for name, number in numbers.items()},
        "tokens_out": "" if one.tokens[1] is None else str(one.tokens[1]),
        "took": _took(one),
    }


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
    expected = {
        "has_ended": one.end is not None,
        "has_failed": any(span.error for span in one.spans),
        "tokens": one.tokens[1] or 0,
        "seconds": _seconds(one) or 0.0,
    }
    scores = [span for span in recording.spans if is_by_identity(span)]
    if not any(score.identity and score.identity.sample == one.identity.sample for score in scores):
        is_number = isinstance(one.given, (bool, int, float)) and not math.isnan(one.given)
        expected["score"] = float(one.given) if is_number and one.given is not None else None
    yield from differing("tail sampling", one, told, expected)


# --- tests --------------------------------------------------------------------------------------------------

_OF_A_SPOOL = (of_list, of_show, of_timeline, of_health)
_OF_A_TABLE = (of_groups, of_steps, of_group, of_report, of_pages)
_OF_ANY = (*_OF_A_SPOOL, *_OF_A_TABLE[:-1])


@_COMMANDS
@given(spans=recordings(projects=12), is_table=st.booleans())
@example(spans=recorded_by(22), is_table=False)
@example(spans=recorded_by(22), is_table=True)
def test_commands_and_pages_give_the_figures_of_the_account(spans: list[Made], is_table: bool) -> None:
    """Trajectories, groups, steps, time and scores are those of the account, from a spool and from a table.

    `make test` asks each command of one of the two.
    """
    recording = Recording(spans)
    of_any = _OF_ANY if _IS_NIGHTLY else ()
    ways = dict.fromkeys((*of_any, *_OF_A_TABLE) if is_table else (*of_any, *_OF_A_SPOOL))
    with asked.places_of(spans) as places:
        source = places.table if is_table else places.spool
        told = [each for way in ways for each in way(source, recording)]
    assert [str(each) for each in told if not is_allowed(each)] == []


@_IN_MEMORY
@given(spans=recordings())
def test_metrics_and_tail_sampling_give_the_figures_of_the_account(spans: list[Made]) -> None:
    """What is measured while spans are recorded, and what decides about delivery, is what is told later."""
    recording = Recording(spans)
    told = [each for one in recording.trajectories for each in of_metrics(one)]
    told += [each for one in recording.trajectories for each in of_tail_sampling(one, recording)]
    assert [str(each) for each in told if not is_allowed(each)] == []
