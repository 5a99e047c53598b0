"""What an inference engine says of a model call's request, as one line and a bar below the call."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from otel_rollout.look.analysis.timeline.phase_drawing import time_bar_of
from otel_rollout.look.conversation import formatting, page, terminal
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.sources.private_table import fill
from otel_rollout.table.location import location_of
from otel_rollout.table.query import Engine
from otel_rollout.table.store import Store
from tests.engine_spans import Call, spans_in, trajectory
from tests.viewer.reading import conversation_of


def conversation(*calls: Call) -> Conversation:
    return conversation_of(spans_in(trajectory(calls)))


def lines(*calls: Call) -> list[str]:
    """Return the line of each model call with a request."""
    return [formatting.engine(turn.engine) for turn in conversation(*calls).turns if turn.engine]


def test_request_is_one_line_below_its_call(tmp_path: Path) -> None:
    """The line replaces four spans, on the terminal and on the page, which has a bar too."""
    found = conversation(Call())
    said = "engine: 120 ms queue, 80 ms prefill, first token after 200 ms, 1.20 s decode (37.5 tokens/s)"
    console = Console(width=120, file=io.StringIO())
    terminal.show(found, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count(said) == 1
    assert "llm_request" not in shown
    store = Store(location_of(str(tmp_path / "table")))
    fill(store, spans_in(trajectory([Call()])))
    html = page.of_conversation(found, time=time_bar_of(Engine(store.open())))
    assert html.count(said) == 1
    assert '<i class="queue" style="width: 8.57%" title="queue">' in html
    assert "generate, queue 120 ms" in html


def test_call_without_a_request_has_no_line() -> None:
    """An engine that does not trace leaves the conversation as it was."""
    assert lines(Call(requests=0), Call()) == lines(Call())
    assert 'in-engine"' not in page.of_conversation(conversation(Call(requests=0)))


def test_request_that_this_package_recorded_has_the_same_line() -> None:
    """In the engine's own process the span is an operation with the engine's times."""
    assert lines(Call(kind="CHAIN")) == lines(Call())
    assert lines(Call(kind="CHAIN", queue=-1, prefill=-1, decode=-1)) == []
    assert lines(Call(kind="LLM")) == []


def test_several_requests_are_summed() -> None:
    """A call that was sent again has the times of all, and the latest first token."""
    assert lines(Call(requests=2)) == [
        "engine, 2 requests: 240 ms queue, 160 ms prefill, first token after at most 200 ms, 2.40 s decode "
        "(37.5 tokens/s)"
    ]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (Call(queue=-1, prefill=-1, decode=-1), "engine: no times"),
        (Call(decode=0.0), "engine: 120 ms queue, 80 ms prefill, first token after 200 ms, 0.00 ms decode"),
        (Call(decode=-1), "engine: 120 ms queue, 80 ms prefill, first token after 200 ms"),
    ],
)
def test_times_that_are_not_known_are_left_out(call: Call, expected: str) -> None:
    """Versions of an engine differ in what they say."""
    assert lines(call) == [expected]


@pytest.mark.parametrize(
    "names", [Call().tokens, ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")]
)
def test_tokens_of_a_call_are_counted_once(names: Any) -> None:
    """The engine's span repeats the counts of the model call above it, by old names or new ones."""
    found = conversation(Call(tokens=names), Call(tokens=names))
    assert (found.summary.tokens.input, found.summary.tokens.output) == (2 * 233, 2 * 46)
    assert found.summary.turns == 2
    assert [turn.tokens.output for turn in found.turns if turn.is_model_call] == [46, 46]
