"""Text of models, tools and attributes is shown as text everywhere."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from otel_rollout.base.printable import printable
from otel_rollout.look.conversation import page, terminal
from otel_rollout.look.conversation.comparison import compare
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.summary import Score, Summary, Tokens
from otel_rollout.look.conversation.turn import Turn
from otel_rollout.otlp.messages import Call
from tests.viewer.test_conversation import line, shown

OWN = re.compile(r"\x1b\[[0-9;]*m")
"""Escape sequences of colours, the only ones that rich may write."""
ALLOWED = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "article",
        "header",
        "div",
        "span",
        "i",
        "b",
        "small",
    ),
    *("h1", "dl", "dt", "dd", "ul", "li", "table", "tr", "th", "td", "details", "summary", "mark"),
}
PIECES = [
    *("[bold]", "[/]", "[link=x]", "\x1b[2J", "\x1b]0;t\x07", "\x9b31m", "\u202e", "\ud800", "\r", "\r\n"),
    *("<script>", "</div>", "<!--", "]]>", "&lt;", "{{ 1 }}", "{% raw %}", "'\"><img src=x>"),
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(st.characters(), max_size=8), max_size=6).map("".join)
TURNS = st.builds(
    Turn,
    role=st.sampled_from(["system", "user", "assistant", "tool", "evaluator", "failure"]) | TEXTS,
    text=TEXTS,
    name=TEXTS,
    calls=st.lists(
        st.builds(Call, TEXTS, st.none() | TEXTS | st.dictionaries(TEXTS, TEXTS, max_size=2)), max_size=2
    ).map(tuple),
    arguments=st.none() | TEXTS | st.dictionaries(TEXTS, TEXTS | st.integers(), max_size=2),
    error=TEXTS,
    stack=TEXTS,
    token_ids=st.lists(st.integers(0, 3), max_size=4).map(tuple),
    tokens=st.builds(Tokens, st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)),
    finish_reason=TEXTS,
    seconds=st.none() | st.floats(0, 1e6),
    note=TEXTS,
    sub_trajectory=TEXTS,
)
SUMMARIES = st.builds(
    Summary,
    trace_id=st.just("0" * 32),
    run=TEXTS,
    project=TEXTS,
    experiment=TEXTS,
    path=TEXTS,
    name=TEXTS,
    state=st.sampled_from(["ok", "error", "running"]),
    error=TEXTS,
    start_ns=st.integers(0, 2**62),
    seconds=st.none() | st.floats(0, 1e6),
    scores=st.lists(st.builds(Score, TEXTS, st.booleans() | st.floats() | TEXTS, TEXTS), max_size=2).map(
        tuple
    ),
    facts=st.dictionaries(TEXTS, TEXTS, max_size=2),
)
CONVERSATIONS = st.builds(Conversation, SUMMARIES, st.lists(TURNS, max_size=3))


def is_plain(text: str) -> bool:
    return printable(text) == text and "\r" not in text


def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=60, highlight=False)


def written(on: Console) -> str:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


class Reading(HTMLParser):
    """Collect the elements and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        assert {name for name, _ in attrs} <= {
            *("lang", "charset", "name", "content", "http-equiv", "class", "colspan")
        }

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")

    def handle_data(self, data: str) -> None:
        self.text += data


@given(CONVERSATIONS)
def test_conversation_of_any_text_controls_neither_terminal_nor_page(conversation: Conversation) -> None:
    """The output has no control character.

    The page has no element but those of its templates.
    """
    on = console()
    terminal.show(conversation, on)
    terminal.list_trajectories([conversation.summary], on, "here")
    assert is_plain(OWN.sub("", written(on)))
    whole = page.of_conversation(conversation)
    assert is_plain(whole)
    read = Reading(whole)
    assert read.elements <= ALLOWED
    for turn in conversation.turns:
        assert printable(turn.text) in read.text


@given(CONVERSATIONS, CONVERSATIONS)
def test_comparison_of_any_text_controls_neither_terminal_nor_page(
    one: Conversation, other: Conversation
) -> None:
    """Two conversations side by side are plain text, wherever they begin to differ."""
    compared = compare(one, other)
    on = console()
    terminal.compare(compared, on)
    assert is_plain(OWN.sub("", written(on)))
    whole = page.of_comparison(compared)
    assert is_plain(whole)
    read = Reading(whole)
    assert read.elements <= ALLOWED
    for turn in (*compared.shared, *(turn for pair in compared.rows for turn in pair if turn)):
        assert printable(turn.text) in read.text


KEYS = st.sampled_from(
    [
        *("messages", "role", "content", "choices", "message", "tool_calls", "function", "arguments", "name"),
        *("prompt_ids", "new", "continues", "shared", "token_ids", "response_text", "prompt_text", "kwargs"),
        *("prompt_text_begins_at_token", "output", "type", "parts", "text", "id"),
    ]
)
WORDS = st.sampled_from(["user", "assistant", "tool", "tool_use", "tool_result", "function_call", "text", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**63) | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
SPANS = st.lists(
    st.tuples(st.sampled_from(["LLM", "TOOL", "EVALUATOR", "CHAIN"]), VALUES, VALUES), max_size=4
)


@given(SPANS)
def test_arguments_and_results_of_any_shape_are_shown(recorded: list[tuple[str, object, object]]) -> None:
    """Any arguments and results make a conversation that can be shown and compared."""
    lines = [line(number, *values, kind=kind) for number, (kind, *values) in enumerate(recorded, start=2)]
    conversation = shown(lines)
    terminal.show(conversation, console())
    page.of_conversation(conversation)
    assert compare(conversation, shown(lines)).divergence is None


@given(TEXTS)
def test_printable_text_stays_unchanged(text: str) -> None:
    """Making text printable twice equals making it printable once.

    Letters, tabs and newlines stay.
    """
    once = printable(text)
    assert printable(once) == once
    assert once.isascii() or not text.isascii() or any(ord(c) < 32 or ord(c) == 127 for c in text)
    once.encode()


def test_spans_inside_one_another_are_shown_once() -> None:
    """A circle of damaged spans does not repeat turns."""
    circle = [
        line(2, None, None, parent=3, kind="AGENT", attributes={"rollout.begins_trajectory": True}),
        line(3, None, "found", parent=2, kind="TOOL", name="search"),
    ]
    found = shown(circle, root_id=2)
    assert [turn.name for turn in found.turns] == ["search"]
    assert found.summary.facts == {}, "the mark of a sub-trajectory is none"
