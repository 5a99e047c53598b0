"""Compare lists, pages and heads of trajectories with the account."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.contracts import asked
from tests.contracts.account import Recording, Sums, Trajectory, by_key, mean_of, seconds_of
from tests.contracts.allowed import Told, differing


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
            "seconds": seconds_of(one),
            "turns": one.turns,
            "tool_calls": one.tool_calls,
            "tool_errors": one.tool_errors,
            "tokens_in": one.tokens[0],
            "tokens_out": one.tokens[1],
            "reward": one.reward,
            "reward_label": _label(one),
        }
        yield from differing("list", one, found[one.trace_id], expected)


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
    rows = asked.rows(source, "steps")
    texts = [str(row["step_text"] if row["step"] is None else row["step"]) for row in rows]
    found = {(row["run_id"], row["validate"], step): row for row, step in zip(rows, texts, strict=True)}
    steps = recording.steps()
    assert found.keys() == steps.keys()
    for key, of in steps.items():
        sums = Sums(of)
        groups = len({one.group for one in of})
        expected = {**sums.row(), "groups": groups, "reward_std": sums.deviation}
        yield from differing("steps", of[0], found[key], expected)


def of_runs(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare each run of the view `runs`: its rewards are those of training, which docs/ do not say."""
    table = asked.parsed(source, "query", "SELECT * FROM runs", "--format", "json")
    found = {row["run_id"]: row for row in table}
    runs = by_key(((one.run,), one) for one in recording.trajectories)
    assert found.keys() == {run for (run,) in runs}
    for (run,), of in runs.items():
        rewards = Sums([one for one in of if not one.identity.validate]).rewards
        expected = {name: Sums(of).row()[name] for name in ("trajectories", "failed", "running")}
        validations = sum(one.identity.validate for one in of)
        trained = {"rewarded": len(rewards), "reward_mean": mean_of(rewards)}
        yield from differing("runs", of[0], found[run], {**expected, **trained, "validations": validations})


def of_show(source: Path, recording: Recording) -> Iterator[Told]:
    """Compare the list of `show`, and one trajectory's head."""
    yield from of_rows("show", asked.printed(source, "show", "--run", recording.run), recording.of_run)
    one = recording.of_run[len(recording.spans) % len(recording.of_run)]
    head = asked.printed(source, "show", one.trace_id, "--run", recording.run)
    yield from differing("show ID", one, _head(" ".join(head.split())), _figures(one))


def of_rows(way: str, text: str, of: Sequence[Trajectory]) -> Iterator[Told]:
    """Compare the list of `show` on a terminal, which has these trajectories."""
    full = {one.trace_id[:8]: one.trace_id for one in of}
    found = {full[row[1][:8]]: row for row in asked.cells(text)}  # ids are cut where names suffice
    assert found.keys() == {one.trace_id for one in of}
    for one in of:
        path, _, reward, state, took, *tokens = found[one.trace_id]
        told = {"path": path, "reward": reward, "state": state, "took": took, "tokens": tokens}
        counts = ["" if count is None else str(count) for count in one.tokens]
        shown = {"reward": _shown(one), "took": _took(one), "tokens": counts}
        yield from differing(way, one, told, {"path": one.path, "state": one.state, **shown})


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


def _page_row(cells: dict[str, str]) -> dict[str, object]:
    """Return the figures of a row; a column in which no row has a value is not there."""
    names = ("trajectory", "state", "reward", "turns", "tool calls", "tool errors", "tokens out", "duration")
    return {name: cells.get(name, "") for name in names}


def _page_figures(one: Trajectory) -> dict[str, object]:
    numbers = {"turns": one.turns, "tool calls": one.tool_calls, "tool errors": one.tool_errors}
    return {
        "trajectory": one.path,
        "state": one.state + (" tool error" if one.tool_errors else ""),
        "reward": _shown(one),
        **{name: "" if number is None else str(number) for name, number in numbers.items()},
        "tokens out": "" if one.tokens[1] is None else str(one.tokens[1]),
        "duration": _took(one),
    }
