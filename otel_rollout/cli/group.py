"""Implement the command ``otel-rollout group``: siblings as a tree that branches where they part."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text
from rich.tree import Tree

from otel_rollout.base.printable import in_one_line
from otel_rollout.cli.dumps import reading, source_options
from otel_rollout.cli.page_output import HtmlOption, JsonOption, answer
from otel_rollout.cli.show import FromOption, RunOption, opened, refuse_options
from otel_rollout.look.analysis.group import text as group_text
from otel_rollout.look.analysis.group.page import document_of, page_of_group
from otel_rollout.look.analysis.group.siblings import names_in, siblings_in
from otel_rollout.look.analysis.group.text import TurnLine
from otel_rollout.look.analysis.group.tree import Branch, Contrast, GroupTree, tree_of
from otel_rollout.look.conversation import excerpt, formatting
from otel_rollout.look.conversation.terminal import CHANGED, STYLES, beside, continuations, facts, text_of
from otel_rollout.look.fitted_table import STATES, print_sentence


@reading
def group(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            help="STEP/SAMPLE (12/7, validation/12/7), or one of its trajectories (12/7/0).", metavar="GROUP"
        ),
    ],
    from_: FromOption = None,
    run: RunOption = None,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Show the siblings of a group as a tree: where they part, and what the good branch did differently."""
    refuse_options(context, name)
    if html and json:
        raise typer.BadParameter("--html and --json exclude each other.")
    names_in(name)  # a wrong name is reported before the source is read
    with opened(from_, run) as source:
        tree = tree_of(siblings_in(source, name))
    show = partial(show_group, tree, Console(highlight=False), source_options(from_, run))
    answer(html, json, partial(page_of_group, tree), partial(document_of, tree), show)


# --- on the terminal ----------------------------------------------------------------------------------------


_MAX_TURNS: Final = 6
"""Turns of a branch that are printed."""
_INDENT: Final = 4
"""Columns by which a branch is indented."""
_BESIDE: Final = 20
"""Columns of a line for the turn's number and role."""
_MIN_LINE: Final = 40
"""Characters of a turn in the tree, however narrow the terminal is."""
_MAX_DEPTH: Final = 8
"""Branch points on the way to a leaf that are printed; further ones would leave no columns for text."""
_MAX_NAMES: Final = 12
"""Siblings that are named at one place."""
_CONTINUED: Final = 4
"""Turns of two branches that are printed side by side."""
_MAX_TEXT: Final = 700
"""Characters of a text that are printed side by side."""


def show_group(tree: GroupTree, console: Console, options: Mapping[str, str | None]) -> None:
    """Print a group's facts, its tree, and what the good branch did differently."""
    console.print(text_of(f"group {tree.group.path}", "bold"))
    further = (("from", tree.group.location), ("note", "\n".join(tree.group.notes)))
    console.print(facts((*group_text.facts(tree), *further)))
    console.print(_tree(tree.root, None, console.width - _BESIDE))
    console.print()
    found = tree.contrast
    console.print(Panel(text_of(group_text.verdict(tree), "bold"), style="cyan" if found else "dim"))
    if found:
        console.print(_contrast(found))
        comparing = f"compare {formatting.quoted(found.left.reference)}"
        hint = f"All turns: {formatting.command(comparing, [found.right.reference], options)}"
        print_sentence(console, text_of(hint, "dim"))


def _tree(branch: Branch, parted_at: int | None, columns: int, depth: int = 0) -> Tree:
    """Return a branch with its turns as a node, and its parts below.

    Args:
        branch: the branch.
        parted_at: the character of the first turn's line at which the branch differs from its siblings.
        columns: columns for the text of a turn.
        depth: number of branch points before the branch.
    """
    lines = group_text.lines_of(branch, parted_at, _MAX_TURNS, max(columns, _MIN_LINE))
    label = [text_of(group_text.heading(branch), "bold") if branch.parts else _leaf(branch)]
    label += [_line(line) for line in lines]
    if ending := group_text.ending(branch):
        label.append(text_of(ending, "dim"))
    if branch.parts:
        label.append(text_of(group_text.parting(branch), "red"))
    node = Tree(Group(*label), guide_style="dim")
    if branch.parts and depth >= _MAX_DEPTH:
        node.add(text_of(group_text.named(branch.siblings, _MAX_NAMES)))
        return node
    parts_at = group_text.parted_at(branch)
    for part in branch.parts:
        node.add(_tree(part, parts_at, columns - _INDENT, depth + 1))
    return node


def _leaf(branch: Branch) -> Text:
    names = []
    for sibling in branch.siblings[:_MAX_NAMES]:
        state = sibling.summary.state
        style = "" if state == "ok" else STATES.get(state, "")
        names.append(
            Text.assemble(
                text_of(in_one_line(sibling.name), "bold"), " ", text_of(group_text.marks(sibling), style)
            )
        )
    if len(branch.siblings) > _MAX_NAMES:
        names.append(text_of(f"and {len(branch.siblings) - _MAX_NAMES} more"))
    return Text(", ").join(names)


def _line(line: TurnLine | str) -> Text:
    if isinstance(line, str):
        shown = text_of(f"   {line}", "dim")
    else:
        before, changed, after = line.parts
        turn = line.turn
        shown = Text.assemble(
            (f"{line.number:>2} ", "dim"),
            text_of(in_one_line(formatting.role(turn)), STYLES.get(turn.role, "")),
            ("  failed" if turn.error else "", STATES["error"]),
            "  ",
            text_of(before),
            text_of(changed, CHANGED),
            text_of(after),
        )
    shown.no_wrap, shown.overflow = True, "ellipsis"
    return shown


def _contrast(found: Contrast) -> RenderableType:
    """Return the two continuations side by side, the better one left."""
    shown = excerpt.beginning(found.comparison, _CONTINUED, _MAX_TEXT)
    pair = (found.left, found.right)
    names = [text_of(f"{in_one_line(each.name)} · {group_text.marks(each)}", "bold") for each in pair]
    where = text_of(formatting.divergence(found.comparison), "red")
    return Group(where, beside([names]), continuations(shown))
