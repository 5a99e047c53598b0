"""The pages of `show` and `compare` have links only where other pages have addresses."""

from __future__ import annotations

from otel_rollout.look.conversation import page
from otel_rollout.look.conversation.comparison import compare
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.page import Trail, trail_of_comparison, trail_of_conversation
from otel_rollout.look.conversation.summary import Score, Summary
from otel_rollout.look.conversation.turn import Turn
from otel_rollout.look.pages.rendering import Links
from tests.analysis.group.test_page import Page, Served


class ServedElsewhere(Served):
    """A server that knows the trajectory in MLflow."""

    def elsewhere(self, trace_id: str) -> list[tuple[str, str]]:
        return [("MLflow", f"http://mlflow/{trace_id[-1]}?a=1&b=<2>")]


def summary(number: int, path: str, reward: float | None = None) -> Summary:
    scores = () if reward is None else (Score("reward", reward),)
    return Summary(f"{number:032x}", run="run-1", path=path, scores=scores)


SIBLINGS = [summary(1, "1/7/0", 0.5), summary(2, "1/7/1", 0.25), summary(3, "1/7/2")]
CONVERSATION = Conversation(SIBLINGS[1], [Turn("user", "Why?")])


def test_trajectory_links_to_step_group_and_siblings() -> None:
    """The best other sibling is the one to compare with."""
    assert trail_of_conversation(SIBLINGS[1], ServedElsewhere(), SIBLINGS) == Trail(
        (("step 1", "/step/1/False"), ("group 1/7", "/group/1/7")),
        "1/7/1",
        (
            ("← 1/7/0", "/trajectory/1/7/0"),
            ("1/7/2 →", "/trajectory/1/7/2"),
            ("compare with the best other sibling, 1/7/0 (reward 0.5)", "/compare/1/7/1/1/7/0"),
        ),
        (("MLflow", "http://mlflow/2?a=1&b=<2>"),),
    )
    found = Page(page.of_conversation(CONVERSATION, ServedElsewhere(), SIBLINGS))
    assert found.addresses["http://mlflow/2?a=1&b=<2>"] == ["MLflow"]
    assert list(found.addresses)[:2] == ["/step/1/False", "/group/1/7"]


def test_names_of_every_shape_have_links() -> None:
    """Of a validation, a row with slashes, a missing step, and a trace that is no trajectory."""

    def way(path: str) -> list[str]:
        return [address for _, address in trail_of_conversation(summary(1, path), Served()).way]

    assert way("validation/3/7/0") == ["/step/3/True", "/group/validation/3/7"]
    assert way("3/a/b/0") == ["/step/3/False", "/group/3/a/b"]
    assert way("-/7/-") == ["/step/None/False", "/group/-/7"]
    assert way("") == []


def test_siblings_with_one_path_are_linked_by_trace_id() -> None:
    """A path that several have names none of them."""
    twice = [summary(1, "1/7/0", 1.0), summary(2, "1/7/0", 0.0)]
    found = trail_of_conversation(twice[1], Served(), twice)
    assert [address for _, address in found.further] == [
        f"/trajectory/{1:032x}", f"/compare/{2:032x}/{1:032x}"
    ]  # fmt: skip


def test_comparison_links_to_both_trajectories_and_their_groups() -> None:
    """Each has its own links to other tools."""
    other = Conversation(summary(4, "2/8/0"), [])
    compared = compare(CONVERSATION, other)
    found = trail_of_comparison(compared, ServedElsewhere())
    assert [text for text, _ in found.way] == ["step 1", "group 1/7", "group 2/8"]
    assert [address for _, address in found.further] == ["/trajectory/1/7/1", "/trajectory/2/8/0"]
    assert [text for text, _ in found.elsewhere] == ["1/7/1 in MLflow", "2/8/0 in MLflow"]
    assert "/trajectory/2/8/0" in Page(page.of_comparison(compared, ServedElsewhere())).addresses


def test_page_that_stands_alone_has_no_navigation() -> None:
    """Siblings alone make no link."""
    assert not trail_of_conversation(SIBLINGS[1], Links(), SIBLINGS)
    compared = compare(CONVERSATION, CONVERSATION)
    for whole in (page.of_conversation(CONVERSATION, None, SIBLINGS), page.of_comparison(compared)):
        assert "trail" not in whole
        assert "<a " not in whole
