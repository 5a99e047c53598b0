"""A group's page holds text of any origin, stands alone, and has links under a server."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from otel_rollout.base.printable import printable
from otel_rollout.look.analysis.group.page import document_of, page_of_group
from otel_rollout.look.analysis.group.siblings import Sibling, Siblings
from otel_rollout.look.analysis.group.tree import tree_of
from otel_rollout.look.conversation.terminal import continuations
from otel_rollout.look.conversation.turn import Turn
from otel_rollout.look.pages.rendering import Links
from tests.analysis.group.groups import group, said, sibling
from tests.viewer.test_hostile import ALLOWED, CONVERSATIONS, TEXTS, is_plain

ELEMENTS = ALLOWED | {"h2", "p", "section", "svg", "rect"}
ATTRIBUTES = {
    *("lang", "charset", "name", "content", "http-equiv", "class", "viewbox", "preserveaspectratio", "role"),
    *("width", "height"),
}
GROUPS = st.lists(st.tuples(TEXTS, CONVERSATIONS), min_size=1, max_size=4).map(
    lambda each: Siblings(
        "1/7", tuple(Sibling(name, name, said) for name, said in each), 9, "here", ("note",)
    )
)


class Page(HTMLParser):
    """Collect the elements, attributes, addresses and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: dict[str, list[str]] = {}
        self.text = ""
        self._address = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._address = next((value or "" for name, value in attrs if name == "href"), "")

    def handle_endtag(self, tag: str) -> None:
        self._address = ""

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._address:
            self.addresses.setdefault(self._address, []).append(data)


class Served(Links):
    """Addresses as a server has them."""

    def step(self, step: int | None, validate: bool = False) -> str:
        return f"/step/{step}/{validate}"

    def group(self, path: str) -> str:
        return f"/group/{path}"

    def trajectory(self, reference: str) -> str:
        return f"/trajectory/{reference}"

    def comparison(self, left: str, right: str) -> str:
        return f"/compare/{left}/{right}"


@given(GROUPS)
def test_group_of_any_text_does_not_control_the_page(found: Siblings) -> None:
    """The page has no control character, and no element or attribute but those of its templates."""
    tree = tree_of(found)
    whole = page_of_group(tree)
    assert is_plain(whole)
    page = Page(whole)
    assert page.elements <= ELEMENTS
    assert page.attributes <= ATTRIBUTES
    assert all(printable(each.name) in page.text for each in found.found)
    document_of(tree)


def test_page_shows_rewards_marks_and_the_words_that_differ() -> None:
    """Each sibling has its reward, and a mark if it failed or runs; identical ones share a leaf."""
    tree = tree_of(
        group(
            sibling(0, said("Let me see.", "It is 42."), 1.0),
            sibling(1, said("Let me see.", "It is 42."), 0.5),
            sibling(2, said("Let me see.", "It is 41."), 0.0, state="error"),
            sibling(3, said("Let me see."), state="running"),
        )
    )
    page = page_of_group(tree)
    text = " ".join(Page(page).text.split())
    assert "The mean reward differs most from turn 2 on: 0.75 (2 siblings) against 0.0 (1 sibling)." in text
    assert "They part at turn 2 (assistant), character 8 of it (“42.” and “41.”)." in text
    assert page.count("<mark>42.</mark>") == page.count("<mark>41.</mark>") == 2
    tree_text = text.partition("All siblings")[2]
    assert "4 siblings · mean reward 0.5 1 assistant Let me see. 3 branches from turn 2" in tree_text
    assert "1/7/0 reward 1.0 1/7/1 reward 0.5 2 assistant It is 42." in tree_text
    assert "1/7/2 reward 0.0 failed 2 assistant It is 41." in tree_text
    assert tree_text.endswith("1/7/3 no reward running (no more turns yet)")
    assert "<a " not in page
    assert "<nav" not in page


def test_arguments_that_differ_are_what_sentence_columns_and_tree_mark() -> None:
    """A tool's results differ, too, but come later."""

    def calls(seed: int, found: str) -> list[Turn]:
        arguments = {"q": "x y", "seed": seed}
        return [*said("Let me see."), Turn("tool", found, name="search", arguments=arguments)]

    tree = tree_of(group(sibling(0, calls(5043, "Andrei"), 1.0), sibling(1, calls(77, "a"), 0.0)))
    page = page_of_group(tree)
    text = " ".join(Page(page).text.split())
    assert "They part at turn 2 (tool search): other arguments (“seed=5043)” and “seed=77)”)." in text
    assert "2 branches from turn 2 (tool search), its arguments" in text
    assert page.count("<mark>seed=5043)</mark>") == page.count("<mark>seed=77)</mark>") == 2
    assert page.count("<mark>") == 4
    console = Console(width=100, force_terminal=True)
    with console.capture() as capture:
        console.print(continuations(tree.contrast.comparison))
    assert "\x1b[7mseed=77)\x1b[0m" in capture.get()


def test_a_verdict_is_green_only_where_a_good_branch_is_found() -> None:
    """Equal rewards teach nothing, and a reward that the text does not decide is red."""
    good = group(sibling(0, said("a"), 0.0), sibling(1, said("b"), 1.0))
    equal = group(
        sibling(0, said("a"), 0.0), sibling(1, said("b"), 0.0), sibling(2, said("c"), state="error")
    )
    mixed = group(sibling(0, said("a"), 0.0), sibling(1, said("a"), 1.0))
    for found, style in ((good, "divergence none"), (equal, "divergence untold"), (mixed, "divergence")):
        assert f'<div class="{style}">' in page_of_group(tree_of(found))


def test_leaves_and_pairs_have_links_under_a_server() -> None:
    """A leaf links to its trajectory and to its comparison with the best sibling."""
    tree = tree_of(group(sibling(0, said("a"), 0.0), sibling(1, said("b"), 1.0)))
    found = Page(page_of_group(tree, Served()))
    assert found.addresses == {
        "/step/1/False": ["step 1"],
        "/trajectory/1/7/0": ["1/7/0", "1/7/0"],
        "/trajectory/1/7/1": ["1/7/1", "1/7/1"],
        "/compare/1/7/1/1/7/0": ["Compare all turns", "compare with the best", "compare with the best"],
    }


def test_equal_rewards_have_no_best_sibling() -> None:
    """Without a difference nothing is compared with the best, which a sibling with its reward also is."""
    equal = group(sibling(0, said("a"), 0.0), sibling(1, said("b"), 0.0), sibling(2, said("c")))
    best = group(sibling(0, said("a"), 1.0), sibling(1, said("b"), 1.0), sibling(2, said("c"), 0.0))
    pages = [page_of_group(tree_of(found), Served()) for found in (equal, best)]
    assert [page.count("compare with the best") for page in pages] == [0, 2]


def test_large_group_has_a_page_of_bounded_size() -> None:
    """Long conversations, long texts and a deep tree are cut; each turn that is cut says so."""
    text = "word " * 20_000
    chain = [sibling(n, said(*([text] * n), f"{n}"), n / 64) for n in range(64)]
    many = [sibling(64, said(*([text] * 10_000)), 0.0)]
    page = page_of_group(tree_of(group(*chain, *many)))
    assert len(page) < 2_000_000
    assert "… 9,913 more turns" in page


def test_document_names_siblings_turns_and_the_point_where_they_part() -> None:
    """Programs get the tree as JSON, counted from 1 as on the page."""
    turns = [Turn("assistant", "so", token_ids=(1, 2)), Turn("assistant", "so", token_ids=(1, 3))]
    document = document_of(tree_of(group(sibling(0, turns[:1], 1.0), sibling(1, turns[1:], 0.0))))
    leaf = {"parts_at": None, "branches": [], "turns": [{"number": 1, "role": "assistant", "text": "so"}]}
    assert document["tree"] == {
        "siblings": ["1/7/0", "1/7/1"],
        "reward_mean": 0.5,
        "turns": [],
        "parts_at": {"turn": 1, "token": 2, "character": 3},
        "branches": [
            {"siblings": ["1/7/0"], "reward_mean": 1.0, **leaf},
            {"siblings": ["1/7/1"], "reward_mean": 0.0, **leaf},
        ],
    }
    assert document["contrast"] == {
        "turn": 1,
        "difference": 1.0,
        "better": {"siblings": ["1/7/0"], "example": "1/7/0"},
        "worse": {"siblings": ["1/7/1"], "example": "1/7/1"},
        "sentence": "They part at turn 1 (assistant), token 2 of it: 2 and 3.",
    }
    assert [each["reward"] for each in document["siblings"]] == [1.0, 0.0]
