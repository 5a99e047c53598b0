"""Find the pages around a trajectory: its step, group and siblings, and other tools."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from otel_rollout.base.printable import in_one_line
from otel_rollout.look.conversation import formatting
from otel_rollout.look.conversation.comparison import Comparison
from otel_rollout.look.conversation.summary import VALIDATION, Summary
from otel_rollout.look.pages.links import Links
from otel_rollout.look.pages.scale import finite
from otel_rollout.table.training import ODD

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
Link = tuple[str, str]
"""Text and address of a link."""


@dataclass(frozen=True)
class Trail:
    """The links above a page.

    Attributes:
        way: pages that contain the page, the step first.
        here: name of the page.
        further: siblings, and comparisons with them.
        elsewhere: the trajectory in other tools.
    """

    way: tuple[Link, ...] = ()
    here: str = ""
    further: tuple[Link, ...] = ()
    elsewhere: tuple[Link, ...] = ()

    def __bool__(self) -> bool:
        """Return whether there is any link."""
        return bool(self.way or self.further or self.elsewhere)


def trail_of_conversation(summary: Summary, links: Links, siblings: Sequence[Summary] = ()) -> Trail:
    """Return the links above the page of a trajectory.

    Args:
        summary: the trajectory.
        links: addresses of pages.
        siblings: the trajectories of its group in their order, with it; empty if they are not known.
    """
    way = way_to(summary, links)
    group = group_of(summary)
    if group:
        way += _known([(f"group {group}", links.group(group))])
    return Trail(
        way,
        summary.path or summary.name,
        _known(_siblings(summary, links, siblings)),
        tuple(links.elsewhere(summary.trace_id)),
    )


def trail_of_comparison(comparison: Comparison, links: Links) -> Trail:
    """Return the links above the page of two trajectories."""
    pair = (comparison.left.summary, comparison.right.summary)
    named = references(pair)
    groups = dict.fromkeys(filter(None, map(group_of, pair)))
    elsewhere = (
        (f"{summary.path or summary.name} in {name}", address)
        for summary in pair
        for name, address in links.elsewhere(summary.trace_id)
    )
    return Trail(
        way_to(pair[0], links) + _known((f"group {group}", links.group(group)) for group in groups),
        "comparison",
        _known((summary.path or summary.name, links.trajectory(named[summary.trace_id])) for summary in pair),
        tuple(elsewhere),
    )


def way_to(summary: Summary, links: Links) -> tuple[Link, ...]:
    """Return the link to a trajectory's step."""
    if not summary.path:
        return ()
    validate = summary.path.startswith(f"{VALIDATION}/")
    step = summary.path.split("/")[1 if validate else 0]
    number = int(step) if _INTEGER.fullmatch(step) else None
    return _known(
        [(f"{VALIDATION} step {step}" if validate else f"step {step}", links.step(number, validate))]
    )


def group_of(summary: Summary) -> str:
    """Return the name of a trajectory's group; empty for a trace that is no trajectory."""
    return summary.path.rpartition("/")[0]


def references(summaries: Sequence[Summary]) -> dict[str, str]:
    """Return what names each trajectory: its path, or its trace id if several have this path, or none."""
    paths = Counter(summary.path for summary in summaries)
    return {
        summary.trace_id: summary.path if summary.path and paths[summary.path] == 1 else summary.trace_id
        for summary in summaries
    }


def reward_of(summary: Summary) -> float | None:
    """Return a trajectory's reward as a number; None without one, or if the views count it as odd."""
    value = next((score.value for score in summary.scores if score.name == "reward"), None)
    number = None if isinstance(value, str) else finite(value)
    return number if number is None or abs(number) < ODD else None


def _siblings(
    summary: Summary, links: Links, siblings: Sequence[Summary]
) -> Iterable[tuple[str, str | None]]:
    """Yield the siblings before and after a trajectory, and the comparison with the best other one."""
    ids = [sibling.trace_id for sibling in siblings]
    if summary.trace_id not in ids:
        return
    named = references(siblings)
    index = ids.index(summary.trace_id)
    if index > 0:
        before = siblings[index - 1]
        yield f"← {before.path}", links.trajectory(named[before.trace_id])
    if index + 1 < len(siblings):
        after = siblings[index + 1]
        yield f"{after.path} →", links.trajectory(named[after.trace_id])
    others = [
        (reward, each)
        for each in siblings
        if each.trace_id != summary.trace_id and (reward := reward_of(each)) is not None
    ]
    if others:
        reward, best = max(others, key=lambda pair: pair[0])
        given = formatting.score_value(reward)
        yield (
            f"compare with the best other sibling, {in_one_line(best.path)} (reward {given})",
            links.comparison(named[summary.trace_id], named[best.trace_id]),
        )


def _known(links: Iterable[tuple[str, str | None]]) -> tuple[Link, ...]:
    """Return the links that have an address."""
    return tuple((text, address) for text, address in links if address is not None)
