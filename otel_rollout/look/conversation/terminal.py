"""Print trajectories: a list, one conversation, or two side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from otel_rollout.base.printable import in_one_line, printable
from otel_rollout.look.conversation import formatting, training
from otel_rollout.look.conversation.comparison import Comparison
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.summary import Summary
from otel_rollout.look.conversation.turn import EVALUATOR, FAILURE, MODEL, TOOL, Turn
from otel_rollout.look.fitted_table import STATES, TableColumn, print_fitted, print_sentence

STYLES: Final = {
    "system": "blue",
    "user": "cyan",
    MODEL: "green",
    TOOL: "yellow",
    EVALUATOR: "magenta",
    FAILURE: "red",
}
"""Style of each role."""
_FAILED: Final = "bold red"
CHANGED: Final = "reverse"
"""Style of the word in which conversations differ."""
_INDENT: Final = (0, 0, 1, 2)
_HALF: Final = {"ratio": 1, "overflow": "fold"}
"""Options of a Rich column that takes the width that other columns leave."""


def list_trajectories(
    summaries: Sequence[Summary], console: Console, location: str, notes: Sequence[str] = ()
) -> None:
    """Print a row for each trajectory, then the runs and the source."""
    rows = sorted(summaries, key=attrgetter("order"))
    digits = _unique_digits(rows)
    columns = (
        TableColumn("trajectory", [in_one_line(formatting.quoted(each.path)) for each in rows]),
        TableColumn("trace", [each.trace_id[:digits] for each in rows], 2),
        TableColumn("reward", [in_one_line(formatting.reward(each)) for each in rows], 1, is_number=True),
        TableColumn("state", [in_one_line(each.state) for each in rows], 1),
        TableColumn("took", [formatting.duration(each.seconds) for each in rows], 1, is_number=True),
        TableColumn("in", [_count(each.tokens.input) for each in rows], 3, is_number=True),
        TableColumn("out", [_count(each.tokens.output) for each in rows], 3, is_number=True),
    )
    print_fitted(console, columns)
    print_sentence(console, text_of("\n".join((*formatting.runs(summaries), f"from {location}", *notes))))


def _count(number: int | None) -> str:
    return "" if number is None else str(number)


def _unique_digits(summaries: Sequence[Summary]) -> int:
    """Return how many leading digits make the trace ids of all trajectories differ."""
    ids = {summary.trace_id for summary in summaries}
    return next(count for count in range(8, 33, 4) if len({id_[:count] for id_ in ids}) == len(ids))


def show(conversation: Conversation, console: Console, location: str = "", notes: Sequence[str] = ()) -> None:
    """Print a conversation turn by turn, with its source."""
    summary = conversation.summary
    title = text_of(in_one_line(summary.path or summary.name), "bold")
    title.append(f"  {printable(summary.state)}", STATES.get(summary.state, ""))
    title.append(f"  {formatting.badge(summary)}".rstrip(), STATES["error"])
    console.print(title)
    raised = (("error", summary.error), ("raised at", formatting.raised_at(conversation.stack)))
    further = (("from", location), ("note", "\n".join(notes)), *raised)
    console.print(facts((*formatting.facts(conversation), *further)))
    found = training.training_of(conversation)
    for number, turn in enumerate(conversation.turns, start=1):
        console.print(_turn(turn, number))
        if found and found.window and found.turn == number:
            console.print(Padding(_tokens(found.window), _INDENT))
    if found:
        console.print(_training(found))
    console.print(_scores(conversation))


def facts(named: Iterable[tuple[str, str]]) -> RenderableType:
    """Return a table of the facts that are not empty, one row each."""
    rows = ((name, text_of(value, _FAILED if name == "error" else "")) for name, value in named if value)
    return Padding(_grid(rows, {"style": "dim"}, {"overflow": "fold"}), (0, 0, 1, 0))


def _grid(rows: Iterable[Iterable[RenderableType]], *columns: dict[str, Any], is_wide: bool = False) -> Table:
    """Return a table without a frame; ``columns`` are the options of its Rich columns."""
    table = Table.grid(expand=is_wide, padding=(0, 1 if is_wide else 2))
    for column in columns:
        table.add_column(**column)
    for row in rows:
        table.add_row(*(text_of(each) if isinstance(each, str) else each for each in row))
    return table


def _turn(turn: Turn, number: int) -> RenderableType:
    return Group(_heading(turn, number), Padding(Group(*_body(turn)), _INDENT))


def _heading(turn: Turn, number: int) -> RenderableType:
    beside = {"justify": "right", "style": "dim"}
    return _grid([(_role(turn, number), formatting.details(turn))], _HALF, beside, is_wide=True)


def _role(turn: Turn, number: int) -> Table:
    """Return a turn's number and role; a further line begins below the role."""
    failed = ("  failed", _FAILED) if turn.error else ""
    role = text_of(formatting.role(turn), f"bold {STYLES.get(turn.role, '')}")
    return _grid([(f"{number:>2}", Text.assemble(role, failed))], {"style": "dim"}, _HALF, is_wide=True)


def _body(turn: Turn, diverging: Comparison | None = None) -> Iterator[Text]:
    """Yield the content of a turn; with ``diverging``, highlight the word that differs."""
    if turn.note:
        yield text_of(f"({turn.note})", "dim italic")
    for mark in turn.marks:
        yield text_of(f"! {in_one_line(mark)}", "bold yellow")
    if turn.shows_arguments:
        parts = formatting.changed_arguments(diverging, turn) if diverging else None
        yield _marked(
            parts or (formatting.shown_arguments(turn), "", ""), "yellow" if turn.role == TOOL else "dim"
        )
    if turn.text:
        yield _marked((diverging.changed(turn) if diverging else None) or (turn.text, "", ""))
    for call in turn.calls_outside_text:
        yield text_of(f"→ {formatting.call(call)}", "yellow")
    if formatting.error(turn):
        yield text_of(formatting.error(turn), "red")
    if turn.engine:
        yield text_of(formatting.engine(turn.engine), "dim")


def _training(found: training.Training) -> RenderableType:
    shown = f" (number {found.turn} above)" if found.turn else ""
    mismatch = [("largest mismatch", f"{found.mismatch}{shown}")] if found.mismatch else []
    table = _grid([*found.facts, *mismatch], {"style": "bold"}, {"overflow": "fold"})
    return Group(Rule("training", style="dim", align="left"), table)


def _tokens(window: training.TokenWindow) -> Table:
    """Return the values of the tokens around the one with the largest difference."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("token", style="dim")
    for token in window.tokens:
        style = CHANGED if token == window.peak else ""
        table.add_column(text_of(str(token), style), justify="right", no_wrap=True)
    for name, values in window.rows:
        table.add_row(text_of(name), *map(text_of, values))
    return table


def _scores(conversation: Conversation) -> RenderableType:
    scores = training.others(conversation)
    rows = ((given.name, formatting.score(given), given.comment) for given in scores)
    table = _grid(rows, {"style": "bold"}, {"justify": "right"}, {"style": "dim", "overflow": "fold"})
    return Group(Rule("scores", style="dim", align="left"), table) if scores else Text("no scores", "dim")


def compare(comparison: Comparison, console: Console) -> None:
    """Print two conversations side by side."""
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("", style="dim")
    for conversation in (comparison.left, comparison.right):
        table.add_column(text_of(formatting.title(conversation.summary)), overflow="fold")
    for name, left, right in formatting.side_by_side(comparison):
        style = "" if left == right else "bold"
        table.add_row(text_of(name), text_of(left, style), text_of(right, style))
    console.print(table)
    console.print()
    for number, turn in enumerate(comparison.shared, start=1):
        console.print(_turn(turn, number))
    colour = "red" if comparison.divergence or formatting.other_scores(comparison) else "green"
    console.print(Panel(text_of(formatting.divergence(comparison), "bold"), style=colour))
    console.print(continuations(comparison))


def continuations(comparison: Comparison) -> RenderableType:
    """Return the turns from the divergence on, side by side."""
    first = len(comparison.shared) + 1
    return beside(
        [_cell(turn, number, comparison if number == first else None) for turn in pair]
        for number, pair in enumerate(comparison.rows, start=first)
    )


def beside(rows: Iterable[Iterable[RenderableType]]) -> Table:
    """Return a table with two columns of equal width."""
    return _grid(rows, _HALF, _HALF, is_wide=True)


def _cell(turn: Turn | None, number: int, diverging: Comparison | None) -> RenderableType:
    """Return the cell of a turn; with ``diverging``, highlight the word that differs."""
    if turn is None:
        return Text("–", "dim")
    details = text_of(formatting.details(turn), "dim")
    return Group(
        _role(turn, number), Padding(Group(*([details] if details else []), *_body(turn, diverging)), _INDENT)
    )


def _marked(parts: tuple[str, str, str], style: str = "") -> Text:
    before, changed, after = parts
    return Text.assemble(text_of(before, style), text_of(changed, CHANGED), text_of(after, style))


def text_of(text: str, style: str = "") -> Text:
    """Return text without effective markup or control characters."""
    return Text(printable(text), style)
