"""Merge the siblings of a group into a tree that branches where they part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from otel_rollout.look.analysis.group.siblings import Sibling, Siblings
from otel_rollout.look.conversation.comparison import (
    Comparison,
    Divergence,
    classes_of,
    compare,
    divergence_of,
)
from otel_rollout.look.conversation.summary import reward_of
from otel_rollout.look.conversation.turn import Turn


@dataclass(frozen=True)
class Branch:
    """Turns that some siblings share, and the branches in which they go on.

    Attributes:
        start: number of turns before the branch.
        turns: the shared turns; empty where some siblings end and others go on.
        siblings: the trajectories of the branch, in the order of their names.
        parts: the branches after the last shared turn, the one with the highest mean reward first. Empty for
            a leaf, whose siblings are identical.
        divergence: the point where the parts begin to differ; None for a leaf.
    """

    start: int
    turns: Sequence[Turn]
    siblings: tuple[Sibling, ...]
    parts: tuple[Branch, ...] = ()
    divergence: Divergence | None = None

    @property
    def end(self) -> int:
        """Number of turns up to the end of the branch."""
        return self.start + len(self.turns)

    @property
    def rewards(self) -> list[float]:
        """The rewards of the siblings that have one."""
        return [reward for sibling in self.siblings if (reward := reward_of(sibling.summary)) is not None]

    @property
    def reward_mean(self) -> float | None:
        """Mean of the rewards; None without any."""
        rewards = self.rewards
        return math.fsum(rewards) / len(rewards) if rewards else None

    @property
    def judged(self) -> list[Sibling]:
        """The siblings with a reward that have ended: one that runs may yet part from the others."""
        return [sibling for sibling in _rewarded(self) if sibling.summary.state != "running"]

    def branches(self) -> Iterator[Branch]:
        """Yield this branch and all branches after it, each before its parts."""
        yield self
        for part in self.parts:
            yield from part.branches()


@dataclass(frozen=True)
class Contrast:
    """What the good branch did differently, at the branch point with the greatest difference of mean reward.

    Attributes:
        better: the branch with the higher mean reward.
        worse: the branch with the lower mean reward.
        left: the best sibling of the better branch.
        right: the worst sibling of the worse branch.
        comparison: these two siblings.
    """

    better: Branch
    worse: Branch
    left: Sibling
    right: Sibling
    comparison: Comparison

    @property
    def difference(self) -> float:
        """Difference of the mean rewards."""
        return _difference(self.better, self.worse)


@dataclass(frozen=True)
class GroupTree:
    """A group as a tree.

    Attributes:
        group: the siblings.
        root: the branch of all siblings.
        contrast: what the good branch did differently; None if no two branches have different mean
            rewards, or if identical siblings differ in reward by as much or more.
    """

    group: Siblings
    root: Branch
    contrast: Contrast | None

    @property
    def leaves(self) -> list[Branch]:
        """The different conversations of the group."""
        return [branch for branch in self.root.branches() if not branch.parts]

    @property
    def mixed(self) -> list[Branch]:
        """The leaves whose identical siblings have different rewards."""
        return [leaf for leaf in self.leaves if _spread(leaf)]


def tree_of(group: Siblings) -> GroupTree:
    """Merge the siblings of a group into a tree; the group has at least one."""
    root = _branch(group.found, 0)
    found = _contrast(root)
    tree = GroupTree(group, root, found)
    by_chance = max(map(_spread, tree.leaves))
    return tree if found is None or found.difference > by_chance else GroupTree(group, root, None)


def _branch(siblings: tuple[Sibling, ...], start: int) -> Branch:
    """Return the branch of siblings whose first ``start`` turns are equal."""
    end = start
    while True:
        turns = [_turn_at(sibling, end) for sibling in siblings]
        classes = classes_of(turns)
        if len(classes) > 1 or turns[0] is None:
            break
        end += 1
    shared = siblings[0].conversation.turns[start:end]
    if len(classes) == 1:
        return Branch(start, shared, siblings)
    parts = [_branch(tuple(siblings[index] for index in each), end) for each in classes]
    divergence = divergence_of(end, [turns[each[0]] for each in classes])
    parts.sort(key=lambda part: math.inf if part.reward_mean is None else -part.reward_mean)
    return Branch(start, shared, siblings, tuple(parts), divergence)


def _turn_at(sibling: Sibling, index: int) -> Turn | None:
    turns = sibling.conversation.turns
    return turns[index] if index < len(turns) else None


def _contrast(root: Branch) -> Contrast | None:
    """Return the contrast at the branch point with the greatest difference.

    Of equal differences, the one between more siblings counts, then the earlier one.
    """
    points = [pair for branch in root.branches() if (pair := _best_and_worst(branch))]
    if not points:
        return None
    better, worse = max(
        points, key=lambda pair: (_difference(*pair), sum(len(part.rewards) for part in pair), -pair[0].start)
    )
    left = max(_rewarded(better), key=_reward)
    right = min(_rewarded(worse), key=_reward)
    return Contrast(better, worse, left, right, compare(left.conversation, right.conversation))


def _best_and_worst(branch: Branch) -> tuple[Branch, Branch] | None:
    """Return the parts with the highest and the lowest mean reward; None if no two differ."""
    rated = [part for part in branch.parts if part.reward_mean is not None]
    if len(rated) < 2 or _difference(rated[0], rated[-1]) <= 0:
        return None
    return rated[0], rated[-1]


def _difference(better: Branch, worse: Branch) -> float:
    return (better.reward_mean or 0.0) - (worse.reward_mean or 0.0)


def _spread(leaf: Branch) -> float:
    rewards = [_reward(sibling) for sibling in leaf.judged]
    return max(rewards, default=0.0) - min(rewards, default=0.0)


def _rewarded(branch: Branch) -> list[Sibling]:
    return [sibling for sibling in branch.siblings if reward_of(sibling.summary) is not None]


def _reward(sibling: Sibling) -> float:
    return reward_of(sibling.summary) or 0.0
