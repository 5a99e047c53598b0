"""Trajectories on a terminal, or in a pipe: a list, one turn by turn, two side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from otel_rollout.viewer import captions
from otel_rollout.viewer.comparison import Comparison
from otel_rollout.viewer.conversation import EVALUATOR, FAILURE, MODEL, TOOL, Conversation, Turn
from otel_rollout.viewer.printable import printable
from otel_rollout.viewer.summary import Summary

_STYLES: Final = {
    "system": "blue",
    "user": "cyan",
    MODEL: "green",
    TOOL: "yellow",
    EVALUATOR: "magenta",
    FAILURE: "red",
}
_STATES: Final = {"ok": "green", "error": "bold red", "running": "yellow"}
_FAILED: Final = "bold red"
_CHANGED: Final = "reverse"
_INDENT: Final = (0, 0, 1, 2)
_NO_LIMIT: Final = 10_000
"""Columns in which a table is measured."""


def list_trajectories(
    summaries: Sequence[Summary], console: Console, place: str, notes: Sequence[str] = ()
) -> None:
    """Print a row for each trajectory, then of which run they are and where they were found."""
    table = Table()
    table.add_column("trajectory", no_wrap=True)
    table.add_column("trace", no_wrap=True)
    for heading in ("reward", "state"):
        table.add_column(heading, justify="right" if heading == "reward" else "left")
    for heading in ("took", "in", "out"):
        table.add_column(heading, justify="right", no_wrap=True)
    digits = _digits_that_tell(summaries)
    for one in sorted(summaries, key=attrgetter("order")):
        counts = ("" if count is None else str(count) for count in (one.tokens.input, one.tokens.output))
        table.add_row(
            _text(captions.name(one)),
            _text(one.trace_id[:digits]),
            _text(captions.reward(one)),
            _text(one.state, _STATES.get(one.state, "")),
            _text(captions.duration(one.seconds)),
            *counts,
        )
    # A name that is cut, or spread over lines, cannot be pasted: rather have a line that is too long.
    unbounded = console.options.update_width(_NO_LIMIT)
    console.width = max(console.width, Measurement.get(console, unbounded, table).maximum)
    console.print(table)
    for said in (*captions.counted_runs(summaries), f"from {place}", *notes):
        console.print(_text(said), soft_wrap=True)


def _digits_that_tell(summaries: Sequence[Summary]) -> int:
    """How many digits of their trace ids tell all of these apart."""
    ids = {one.trace_id for one in summaries}
    return next(count for count in range(8, 33, 4) if len({id_[:count] for id_ in ids}) == len(ids))


def show(conversation: Conversation, console: Console, place: str = "", notes: Sequence[str] = ()) -> None:
    """Print a conversation turn by turn, and where it was found."""
    summary = conversation.summary
    title = _text(summary.path or summary.name, "bold")
    title.append(f"  {printable(summary.state)}", _STATES.get(summary.state, ""))
    console.print(title)
    console.print(_facts(conversation, place, notes))
    for number, turn in enumerate(conversation.turns, start=1):
        console.print(_turn(turn, number))
    console.print(_scores(conversation))


def _facts(conversation: Conversation, place: str, notes: Sequence[str]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in (*captions.facts(conversation), ("from", place), ("note", "\n".join(notes))):
        if value:
            table.add_row(_text(name), _text(value))
    problem = conversation.summary.problem
    if problem:
        table.add_row(_text("error"), _text(problem, _FAILED))
    return Padding(table, (0, 0, 1, 0))


def _turn(turn: Turn, number: int) -> RenderableType:
    return Group(_heading(turn, number), Padding(Group(*_body(turn)), _INDENT))


def _heading(turn: Turn, number: int) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(ratio=1, overflow="fold")
    line.add_column(justify="right", style="dim", no_wrap=False)
    line.add_row(_who(turn, number), _text(captions.beside(turn)))
    return line


def _who(turn: Turn, number: int) -> Text:
    failed = ("  failed", _FAILED) if turn.problem else ""
    who = _text(captions.role(turn), f"bold {_STYLES.get(turn.role, '')}")
    return Text.assemble((f"{number:>2} ", "dim"), who, failed)


def _body(turn: Turn, parts: tuple[str, str, str] | None = None) -> Iterator[Text]:
    """What a turn says; of ``parts``, which its text consists of, the middle one is made to stand out."""
    if turn.note:
        yield _text(f"({turn.note})", "dim italic")
    if turn.shows_arguments:
        yield _text(f"({captions.arguments(turn.arguments)})", "yellow" if turn.role == TOOL else "dim")
    if turn.text:
        before, changed, after = parts or (turn.text, "", "")
        yield Text.assemble(_text(before), _text(changed, _CHANGED), _text(after))
    for call in turn.unwritten_calls:
        yield _text(f"→ {captions.call(call)}", "yellow")
    if captions.problem(turn):
        yield _text(captions.problem(turn), "red")


def _scores(conversation: Conversation) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim", overflow="fold")
    for given in conversation.summary.scores:
        table.add_row(_text(given.name), _text(captions.score(given)), _text(given.comment))
    return (
        Group(Rule("scores", style="dim", align="left"), table)
        if conversation.summary.scores
        else Text("no scores", "dim")
    )


def compare(comparison: Comparison, console: Console) -> None:
    """Print two conversations side by side."""
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("", style="dim")
    for conversation in (comparison.one, comparison.other):
        table.add_column(_text(captions.title(conversation.summary)), overflow="fold")
    for name, one, other in captions.side_by_side(comparison):
        style = "" if one == other else "bold"
        table.add_row(_text(name), _text(one, style), _text(other, style))
    console.print(table)
    console.print()
    for number, turn in enumerate(comparison.shared, start=1):
        console.print(_turn(turn, number))
    colour = "red" if comparison.divergence else "green"
    console.print(Panel(_text(captions.parting(comparison), "bold"), style=colour))
    console.print(_columns(comparison))


def _columns(comparison: Comparison) -> RenderableType:
    table = Table.grid(expand=True, padding=(0, 1))
    for _ in range(2):
        table.add_column(ratio=1, overflow="fold")
    first = len(comparison.shared) + 1
    for number, pair in enumerate(comparison.rows, start=first):
        table.add_row(*(_cell(turn, number, comparison if number == first else None) for turn in pair))
    return table


def _cell(turn: Turn | None, number: int, parting_in: Comparison | None) -> RenderableType:
    if turn is None:
        return Text("–", "dim")
    parts = parting_in.changed(turn) if parting_in else None
    beside = _text(captions.beside(turn), "dim")
    return Group(
        _who(turn, number), Padding(Group(*([beside] if beside else []), *_body(turn, parts)), _INDENT)
    )


def _text(text: str, style: str = "") -> Text:
    """Text as it is: no markup in it is read, nothing in it steers the terminal."""
    return Text(printable(text), style)
