"""Render trajectories as self-contained HTML pages, with links to related pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from otel_rollout.base.printable import in_one_line
from otel_rollout.look.conversation import formatting, training
from otel_rollout.look.conversation.comparison import Comparison
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.summary import (
    VALIDATION,
    Summary,
    group_of,
    parts_of,
    references,
    reward_of,
)
from otel_rollout.look.pages.rendering import Links, render
from otel_rollout.table.filters import step_named

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
        siblings: all trajectories of its group, in their order; empty if they are not known.
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
    """Return the links to a trajectory's step: one, or none without an address."""
    if not summary.path:
        return ()
    validate, (step, *_) = parts_of(summary.path, summary.step_text)
    step = summary.step_text or step
    address = links.step(step_named(step), validate)
    return _known([(f"{VALIDATION} step {step}" if validate else f"step {step}", address)])


def of_conversation(
    conversation: Conversation,
    links: Links | None = None,
    siblings: Sequence[Summary] = (),
    time: Any = None,
) -> str:
    """Return the page of a conversation, turn by turn.

    Args:
        conversation: the trajectory.
        links: addresses of other pages; by default the page stands alone.
        siblings: all trajectories of its group, in their order, for links to them.
        time: the :class:`TimeBar` that ``time_bar.html`` draws; nothing by default.
    """
    trail = trail_of_conversation(conversation.summary, links or Links(), siblings)
    return render(
        "conversation.html", links, formatting=formatting, conversation=conversation, trail=trail, time=time,
        training=training.training_of(conversation), scores=training.others(conversation),
    )  # fmt: skip


def of_comparison(comparison: Comparison, links: Links | None = None) -> str:
    """Return the page of two conversations side by side.

    Args:
        comparison: the two trajectories.
        links: addresses of other pages; by default the page stands alone.
    """
    trail = trail_of_comparison(comparison, links or Links())
    return render("comparison.html", links, formatting=formatting, comparison=comparison, trail=trail)


def _siblings(
    summary: Summary, links: Links, siblings: Sequence[Summary]
) -> Iterable[tuple[str, str | None]]:
    """Yield links to the siblings before and after a trajectory, and to a comparison with the best other one.

    If the best other sibling has the same reward, there is no comparison.
    """
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
    reward, best = max(others, key=lambda pair: pair[0], default=(None, summary))
    if reward is not None and reward != reward_of(summary):
        given = formatting.score_value(reward)
        yield (
            f"compare with the best other sibling, {in_one_line(best.path)} (reward {given})",
            links.comparison(named[summary.trace_id], named[best.trace_id]),
        )


def _known(links: Iterable[tuple[str, str | None]]) -> tuple[Link, ...]:
    """Return the links that have an address."""
    return tuple((text, address) for text, address in links if address is not None)
