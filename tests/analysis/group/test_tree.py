"""Siblings are merged over their common turns, and the good branch is found."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypothesis import example, given

from otel_rollout.look.analysis.group import text as group_text
from otel_rollout.look.analysis.group.siblings import Sibling, Siblings
from otel_rollout.look.analysis.group.tree import Branch, GroupTree, tree_of
from otel_rollout.look.conversation.comparison import Divergence, classes_of
from otel_rollout.look.conversation.turn import Turn
from otel_rollout.otlp.messages import Call
from tests.analysis.group.groups import CALLS, GROUPS, group, said, sibling


def paths(branch: Branch, before: tuple[Turn, ...] = ()) -> Iterator[tuple[Branch, tuple[Turn, ...]]]:
    """Yield each leaf with the turns from the first one to its last one."""
    turns = (*before, *branch.turns)
    if not branch.parts:
        yield branch, turns
    for part in branch.parts:
        yield from paths(part, turns)


def names(branch: Branch) -> list[str]:
    return [each.name.rpartition("/")[2] for each in branch.siblings]


def shape(branch: Branch) -> object:
    """Return numbers of turns and names of siblings, as nested tuples."""
    if not branch.parts:
        return len(branch.turns), " ".join(names(branch))
    return len(branch.turns), *(shape(part) for part in branch.parts)


@given(GROUPS)
@example(group(sibling(0, []), sibling(1, [])))
def test_path_to_a_leaf_is_the_conversation_of_each_of_its_siblings(found: Siblings) -> None:
    """Merging loses no turn and no sibling, whatever the conversations are."""
    tree = tree_of(found)
    leaves = list(paths(tree.root))
    assert sorted(each.name for leaf, _ in leaves for each in leaf.siblings) == [
        each.name for each in found.found
    ]
    assert [leaf for leaf, _ in leaves] == tree.leaves
    for leaf, turns in leaves:
        for each in leaf.siblings:
            own = each.conversation.turns
            assert len(own) == len(turns) == leaf.end
            assert all(len(classes_of(pair)) == 1 for pair in zip(own, turns, strict=True))


@given(GROUPS)
def test_siblings_of_different_branches_differ_in_the_first_turn(found: Siblings) -> None:
    """Each branch point has at least two parts, whose siblings are those of the branch."""
    for branch in tree_of(found).root.branches():
        assert len(branch.parts) != 1
        assert (branch.divergence is None) == (not branch.parts)
        assert all(part.start == branch.end for part in branch.parts)
        if branch.parts:
            assert sorted(name for part in branch.parts for name in names(part)) == names(branch)
            first = [part.turns[0] if part.turns else None for part in branch.parts]
            assert len(classes_of(first)) == len(branch.parts)


@given(GROUPS)
def test_words_of_any_tree_can_be_written(found: Siblings) -> None:
    """Facts, sentences and lines exist for every shape; a mean reward lies between its rewards."""
    tree = tree_of(found)
    assert all(isinstance(value, str) for pair in group_text.facts(tree) for value in pair)
    assert group_text.verdict(tree).endswith(".") or tree.contrast
    for branch in tree.root.branches():
        group_text.lines_of(branch, group_text.parted_at(branch), 4, 20)
        mean = branch.reward_mean
        assert mean is None or min(branch.rewards) <= mean <= max(branch.rewards)
        width = group_text.width(tree, branch)
        assert width is None or 0 <= width <= 100


def test_identical_siblings_with_different_rewards_are_named_instead_of_a_good_branch() -> None:
    """A difference of means within that of identical siblings is none; a greater one is told beside them."""
    alike = [sibling(place, said("a", "b"), reward) for place, reward in enumerate([1.0, 1.0, 0.0, 1.0])]
    tree = tree_of(group(*alike, sibling(4, said("a", "c"), 1.0)))
    sentence = (
        "The siblings 1/7/0, 1/7/1, 1/7/2, 1/7/3 are identical, yet have rewards 1.0, 1.0, 0.0, 1.0: "
        "the reward does not depend on the text alone."
    )
    assert (tree.contrast, group_text.verdict(tree)) == (None, sentence)
    greater = tree_of(group(*alike, sibling(4, said("a", "c"), 9.0)))
    assert group_text.verdict(greater) == (
        f"{sentence} The mean reward differs most from turn 2 on: 9.0 (1 sibling) against 0.75 (4 siblings)."
    )


def test_ids_of_tool_calls_do_not_part_siblings() -> None:
    """Ids differ in every run; arguments, errors and token ids part."""

    def turns(call: Call, **more: object) -> list[Turn]:
        return [Turn("assistant", "so", calls=(call,), **more)]  # type: ignore[arg-type]

    tree = tree_of(
        group(
            sibling(0, turns(CALLS[0])),
            sibling(1, turns(CALLS[1])),
            sibling(2, turns(CALLS[2])),
            sibling(3, turns(CALLS[0], error="ValueError: no")),
        )
    )
    assert shape(tree.root) == (0, (1, "0 1"), (1, "2"), (1, "3"))
    assert group_text.parted_at(tree.root) == len("so → ")


def test_token_and_character_are_named_where_branches_part() -> None:
    """Ids decide where they are recorded; a reply without ids joins an equal text."""

    def reply(text: str, *ids: int) -> list[Turn]:
        return [*said("first"), Turn("assistant", text, token_ids=ids)]

    tree = tree_of(
        group(
            sibling(0, reply("so be it", 5, 6, 7)),
            sibling(1, reply("so be it", 5, 6, 8)),
            sibling(2, reply("so be it")),
            sibling(3, reply("so was it", 5, 9)),
        )
    )
    assert shape(tree.root) == (1, (1, "0 2"), (1, "1"), (1, "3"))
    assert tree.root.divergence == Divergence(1, len("so "), 1, (6, 6, 9), len("so "))
    assert (
        group_text.parting(tree.root) == "3 branches from turn 2 (assistant), token 2 of it at the earliest"
    )
    by_text = tree_of(group(sibling(0, said("so be it")), sibling(1, said("so was it"))))
    assert group_text.parting(by_text.root) == "2 branches from turn 1 (assistant), character 4 of it"


def test_sibling_that_ends_where_others_go_on_is_a_leaf_without_turns() -> None:
    """It ended or still runs; the others part later."""
    found = [
        sibling(0, said("a", "b"), 1.0),
        sibling(1, said("a"), state="running"),
        sibling(2, said("a", "c"), 0.0, state="error"),
    ]
    tree = tree_of(group(*found))
    assert shape(tree.root) == (1, (1, "0"), (1, "2"), (0, "1"))
    *_, ended = tree.root.parts
    assert group_text.ending(ended) == "(no more turns yet)"
    assert dict(group_text.facts(tree)) == {
        "run": "run-1",
        "siblings": "3, 1 failed, 1 running",
        "reward": "mean 0.5, 0.0 to 1.0; 1 without a number",
        "different": "3 conversations",
        "alike": "the first turn",
    }
    assert [group_text.marks(each) for each in found] == [
        "reward 1.0", "no reward · running", "reward 0.0 · failed"
    ]  # fmt: skip


def contrast(tree: GroupTree) -> object:
    found = tree.contrast
    return found and (found.better.start + 1, names(found.better), names(found.worse), found.difference)


def test_contrast_is_at_the_branch_point_with_the_greatest_difference() -> None:
    """The best sibling of the better branch stands beside the worst of the worse one."""
    tree = tree_of(
        group(
            sibling(0, said("a", "x"), 0.2),
            sibling(1, said("a", "y"), 1.0),
            sibling(2, said("a", "y"), 1.0),
            sibling(3, said("b", "x"), 0.5),
            sibling(4, said("b", "y"), 0.6),
        )
    )
    assert shape(tree.root) == (0, (1, (1, "1 2"), (1, "0")), (1, (1, "4"), (1, "3")))
    assert contrast(tree) == (2, ["1", "2"], ["0"], 0.8)
    found = tree.contrast
    assert found is not None
    assert (found.left.name, found.right.name) == ("1/7/1", "1/7/0")
    assert found.comparison.divergence == Divergence(1)
    assert group_text.verdict(tree) == (
        "The mean reward differs most from turn 2 on: 1.0 (2 siblings) against 0.2 (1 sibling)."
    )


def test_of_equal_differences_the_one_between_more_siblings_counts() -> None:
    """Then the earlier one."""
    tree = tree_of(
        group(
            sibling(0, said("a", "x"), 1.0),
            sibling(1, said("a", "y"), 1.0),
            sibling(2, said("b", "x"), 0.0),
            sibling(3, said("b", "y"), 0.0),
        )
    )
    assert contrast(tree) == (1, ["0", "1"], ["2", "3"], 1.0)


def verdict(*found: Sibling) -> str:
    tree = tree_of(group(*found))
    assert tree.contrast is None
    return group_text.verdict(tree)


def test_group_without_a_good_branch_says_why() -> None:
    """One trajectory, copies, no rewards, and equal or unusable rewards have no contrast."""
    assert verdict(sibling(0, said("a"), 1.0)) == "One trajectory: there is no sibling to compare with."
    assert verdict(sibling(0, said("a"), 1.0), sibling(1, said("a"), 1.0)) == "All siblings are identical."
    no_reward = "No reward is a number: nothing says which branch is the good one."
    assert verdict(sibling(0, said("a")), sibling(1, said("b"))) == no_reward
    assert verdict(sibling(0, said("a"), math.nan), sibling(1, said("b"), "good")) == no_reward
    unjudged = "The known rewards do not say which branch is the good one."
    assert verdict(sibling(0, said("a"), 1.0), sibling(1, said("b"))) == unjudged
    others = [sibling(number, said("a"), 1.0) for number in (0, 1)]
    failed = sibling(2, said("a"), state="error")
    assert verdict(*others, failed) == f"All siblings are identical. 1 sibling failed: {failed.name}."
    equal = [sibling(0, said("a"), 1.0), sibling(1, said("b"), 1.0)]
    silent = [sibling(number, [Turn("assistant", is_call=True)], number) for number in (0, 1)]
    not_recorded = "What they said was not recorded: nothing tells the siblings apart."
    assert verdict(*silent) == f"The siblings 1/7/0, 1/7/1 have rewards 0.0, 1.0. {not_recorded}"
    assert verdict(silent[0], sibling(1, silent[0].conversation.turns, 0)) == not_recorded
    assert verdict(*equal) == "All 2 rewards are 1.0: the group teaches nothing."
    assert verdict(*equal, sibling(2, said("c"))) == "All 2 known rewards are 1.0: the group teaches nothing."
    running = sibling(2, said("c"), state="running")
    assert verdict(*equal, running) == "All 2 known rewards are 1.0 so far."


def test_sibling_that_runs_is_not_called_identical() -> None:
    """It may part from the others yet, whatever reward it has so far."""
    ended, running = sibling(0, said("a"), 1.0), sibling(1, said("a"), 0.5, state="running")
    assert verdict(ended, running) == "All siblings are identical so far."
    unjudged = "The known rewards do not say which branch is the good one."
    assert verdict(ended, running, sibling(2, said("b"), 0.75)) == unjudged
    (sentence,) = group_text.verdict(tree_of(group(ended, running, sibling(2, said("a"), 0.0)))).splitlines()
    assert sentence.startswith("The siblings 1/7/0, 1/7/2 are identical, yet have rewards 1.0, 0.0")


def test_many_siblings_that_part_one_after_another_are_merged() -> None:
    """A tree as deep as the group is large, and conversations of ten thousand turns."""
    chain = tree_of(group(*(sibling(n, said(*(["a"] * n), "b"), n / 64) for n in range(64))))
    assert len(chain.leaves) == 64
    assert contrast(chain) == (1, [str(n) for n in range(1, 64)], ["0"], 0.5)
    long = said(*(str(n) for n in range(10_000)))
    tree = tree_of(group(sibling(0, [*long, *said("x")]), sibling(1, [*long, *said("y")])))
    assert shape(tree.root) == (10_000, (1, "0"), (1, "1"))
    lines = group_text.lines_of(tree.root, None, 6, 50)
    numbers = [line if isinstance(line, str) else line.number for line in lines]
    assert numbers == [1, 2, 3, 4, "… 9,994 more turns", 9_999, 10_000]


def test_line_of_a_long_reply_shows_the_word_in_which_branches_part() -> None:
    """The line begins shortly before this word, and is one line of bounded length."""
    tree = tree_of(
        group(*(sibling(n, said("word\n" * 5_000 + last)) for n, last in enumerate(["one", "two"])))
    )
    at = group_text.parted_at(tree.root)
    (line,) = group_text.lines_of(tree.root.parts[0], at, 6, 60)
    assert isinstance(line, group_text.TurnLine)
    assert line.parts == ("…" + "word " * 6, "one", "")
    assert line.is_cut
    (line,) = group_text.lines_of(tree.root.parts[0], None, 6, 10)
    assert isinstance(line, group_text.TurnLine)
    assert "".join(line.parts) == "word word …"
