"""Say in words what a group's tree shows, for the terminal and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from otel_rollout.base.printable import in_one_line
from otel_rollout.look.analysis.group.siblings import Sibling
from otel_rollout.look.analysis.group.tree import Branch, GroupTree
from otel_rollout.look.conversation import excerpt, formatting
from otel_rollout.look.conversation.comparison import at_word, parting_of
from otel_rollout.look.conversation.summary import reward_of
from otel_rollout.look.conversation.turn import Turn

_STATES: Final = {"error": "failed", "running": "running"}
_BEFORE: Final = 30
"""Characters of a line that are shown before the point where branches part."""
_MAX_NAMED: Final = 8
"""Maximum siblings that a sentence names."""
_NOTHING_RECORDED: Final = "What they said was not recorded: nothing tells the siblings apart."
_LAST: Final = 2
"""Turns at the end of a branch that are shown if there are too many turns."""


class TurnLine(NamedTuple):
    """A turn in one line.

    Attributes:
        number: the turn's place in its conversation, from 1.
        turn: the turn.
        parts: the line's text before the word in which branches differ, this word, and the rest.
        is_cut: whether the line lacks a part of the turn.
    """

    number: int
    turn: Turn
    parts: tuple[str, str, str]
    is_cut: bool


def facts(tree: GroupTree) -> Iterator[tuple[str, str]]:
    """Yield name and value of each fact about the group as a whole."""
    group, root = tree.group, tree.root
    of_run = next((each.summary for each in group.found if each.summary.run), group.found[0].summary)
    yield "run", formatting.run(of_run)
    states = Counter(each.summary.state for each in group.found)
    marked = [f"{states[state]} {word}" for state, word in _STATES.items() if states[state]]
    first = f"the first {len(group.found)} of " if group.number > len(group.found) else ""
    yield "siblings", ", ".join([f"{first}{group.number}", *marked])
    yield "reward", _rewards(root)
    yield "different", f"{formatting.counted(len(tree.leaves), 'conversation')}"
    first = "turn" if root.end == 1 else formatting.counted(root.end, "turn")
    shared = f"the first {first}" if root.end else "no turn"
    yield "alike", shared if root.parts else "all turns"


def _rewards(root: Branch) -> str:
    rewards = root.rewards
    if not rewards:
        is_given = any(formatting.reward(sibling.summary) for sibling in root.siblings)
        return "none is a number" if is_given else "none recorded"
    low, high = number(min(rewards)), number(max(rewards))
    spread = f"all {low}" if low == high else f"mean {number(root.reward_mean)}, {low} to {high}"
    missing = len(root.siblings) - len(rewards)
    return f"{spread}; {missing} without a number" if missing else spread


def verdict(tree: GroupTree) -> str:
    """Say where good and bad branch part, which identical siblings differ in reward, and which failed."""
    mixed = [_mixed(leaf) for leaf in tree.mixed]
    said = [] if mixed and tree.contrast is None else [_verdict(tree)]
    return " ".join([*mixed, *said, *_failed(tree)])


def _failed(tree: GroupTree) -> Iterator[str]:
    """Yield a sentence about failed siblings, which a mean of rewards may leave out."""
    failed = [each for each in tree.group.found if each.summary.state == "error"]
    if failed:
        named = formatting.first_of([in_one_line(each.name) for each in failed], _MAX_NAMED)
        yield f"{formatting.counted(len(failed), 'sibling')} failed: {named}."


def _mixed(leaf: Branch) -> str:
    names = formatting.first_of([in_one_line(each.name) for each in leaf.judged], _MAX_NAMED)
    rewards = formatting.first_of([number(reward_of(each.summary)) for each in leaf.judged], _MAX_NAMED)
    if not _has_content(leaf):
        return f"The siblings {names} have rewards {rewards}. {_NOTHING_RECORDED}"
    return (
        f"The siblings {names} are identical, yet have rewards {rewards}: "
        "the reward does not depend on the text alone."
    )


def _has_content(branch: Branch) -> bool:
    return any(sibling.conversation.has_content for sibling in branch.siblings)


def _verdict(tree: GroupTree) -> str:
    found = tree.contrast
    if found is not None:
        better, worse = (
            f"{number(branch.reward_mean)} ({formatting.counted(len(branch.siblings), 'sibling')})"
            for branch in (found.better, found.worse)
        )
        return (
            f"The mean reward differs most from turn {found.better.start + 1} on: {better} against {worse}."
        )
    if len(tree.root.siblings) == 1:
        return "One trajectory: there is no sibling to compare with."
    rewards = tree.root.rewards
    if not tree.root.parts:
        still = " so far" if _runs(tree) else ""
        return f"All siblings are identical{still}." if _has_content(tree.root) else _NOTHING_RECORDED
    if not rewards:
        return "No reward is a number: nothing says which branch is the good one."
    if len(rewards) == 1 or min(rewards) < max(rewards):  # differ: of identical siblings, one of which runs
        return "The known rewards do not say which branch is the good one."
    known = len(rewards)
    which = "" if known == len(tree.root.siblings) else "known "
    rest = " so far" if _runs(tree) else ": the group teaches nothing"
    return f"All {known} {which}rewards are {number(rewards[0])}{rest}."


def _runs(tree: GroupTree) -> bool:
    return any(each.summary.state == "running" for each in tree.root.siblings)


def heading(branch: Branch) -> str:
    """Say how many siblings a branch has, and their mean reward."""
    mean = branch.reward_mean
    reward = "no reward" if mean is None else f"mean reward {number(mean)}"
    return f"{formatting.counted(len(branch.siblings), 'sibling')} · {reward}"


def marks(sibling: Sibling) -> str:
    """Return in words a sibling's reward, and whether the sibling failed or still runs."""
    return " · ".join(filter(None, (rewarded(sibling), state(sibling))))


def rewarded(sibling: Sibling) -> str:
    """Return a sibling's reward in words."""
    value = reward_of(sibling.summary)
    given = formatting.reward(sibling.summary) if value is None else number(value)
    return f"reward {given}" if given else "no reward"


def state(sibling: Sibling) -> str:
    """Say whether a sibling failed or still runs; empty for one that ended well."""
    return _STATES.get(sibling.summary.state, "")


def best_of(tree: GroupTree) -> Sibling | None:
    """Return the first sibling with the highest reward; None if no two siblings differ in reward."""
    rated = [(reward, each) for each in tree.group.found if (reward := reward_of(each.summary)) is not None]
    return max(rated, key=lambda pair: pair[0])[1] if len(dict(rated)) > 1 else None


def width(tree: GroupTree, branch: Branch) -> int | None:
    """Return a branch's mean reward as percent of the way from the group's least to its greatest reward."""
    low, high = min(tree.root.rewards, default=0.0), max(tree.root.rewards, default=0.0)
    if branch.reward_mean is None or low == high:
        return None
    return round(100 * (branch.reward_mean - low) / (high - low))


def ending(branch: Branch) -> str:
    """Say that the siblings of a leaf have no turns of their own; empty for any other branch."""
    if branch.parts or branch.turns:
        return ""
    running = [each for each in branch.siblings if each.summary.state == "running"]
    word = "no more turns yet" if len(running) == len(branch.siblings) else "no more turns"
    return f"({word})" if branch.start else "(no turns)"


def parting(branch: Branch) -> str:
    """Say where the parts of a branch differ; empty for a leaf."""
    found = branch.divergence
    if found is None:
        return ""
    first = [part.turns[0] for part in branch.parts if part.turns]
    if len(first) == 1:
        return f"After turn {found.turn}, some have no more turns." if found.turn else "Some have no turn."
    where = f"turn {found.turn + 1}"
    earliest = " at the earliest" if len(first) > 2 else ""  # two of several may part later
    roles = {formatting.role(turn) for turn in first}
    if len(roles) == 1:
        where += f" ({in_one_line(roles.pop())})"
        texts = {turn.text for turn in first}
        if found.token is not None:
            where += f", token {found.token + 1} of it{earliest}"
        elif found.in_arguments:
            where += ", its arguments"
        elif len(texts) > 1:
            where += f", character {found.characters + 1} of it{earliest}"
    return f"{len(branch.parts)} branches from {where}"


def lines_of(branch: Branch, parted_at: int | None, limit: int, length: int) -> list[TurnLine | str]:
    """Return the turns of a branch as lines, and a text in place of those that are not shown.

    Args:
        branch: the branch.
        parted_at: what :func:`parted_at` returns for the branch before; None for the first branch.
        limit: maximum turns; of more, the first ones and the last two are returned.
        length: maximum characters of a line.
    """
    count = len(branch.turns)
    indices = list(range(count))
    if count > limit:
        indices = [*range(limit - _LAST), *range(count - _LAST, count)]
    lines: list[TurnLine | str] = [
        _line(branch.start + index + 1, branch.turns[index], None if index else parted_at, length)
        for index in indices
    ]
    if count > limit:
        lines.insert(limit - _LAST, f"{excerpt.CUT} {formatting.counted(count - limit, 'more turn')}")
    return lines


def parted_at(branch: Branch) -> int | None:
    """Return the index in a line of the first word that differs; None if no line shows that."""
    first = [part.turns[0] for part in branch.parts if part.turns]
    if len(first) < 2 or len({(turn.role, turn.name) for turn in first}) > 1:
        return None
    lines = [excerpt.line_of(turn) for turn in first]
    return parting_of(lines)[1] if len(set(lines)) > 1 else None


def _line(number: int, turn: Turn, at: int | None, length: int) -> TurnLine:
    text = excerpt.line_of(turn)
    start = max(0, at - _BEFORE) if at is not None and at + _BEFORE > length else 0
    piece = text[start : start + length]
    parts = (piece, "", "") if at is None else at_word(piece, min(at - start, len(piece)))
    before, changed, after = (in_one_line(part.replace("\n", " ")) for part in parts)
    is_ended = start + length >= len(text)
    begin, end = excerpt.CUT if start else "", "" if is_ended else excerpt.CUT
    return TurnLine(number, turn, (begin + before, changed, after + end), bool(begin or end))


def number(value: float | None) -> str:
    """Format a reward."""
    return "" if value is None else formatting.score_value(float(f"{value:.4g}"))


def named(siblings: Sequence[Sibling], limit: int) -> str:
    """Name siblings with their rewards, and say how many more there are."""
    shown = ", ".join(f"{in_one_line(each.name)} ({marks(each)})" for each in siblings[:limit])
    more = len(siblings) - limit
    return f"{shown} and {more} more" if more > 0 else shown
