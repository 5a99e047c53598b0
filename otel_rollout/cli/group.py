"""Implement the command ``otel-rollout group``: siblings as a tree that branches where they part."""

from __future__ import annotations

from json import dumps as to_json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from otel_rollout.cli import sources
from otel_rollout.cli.page_output import HtmlOption, write_page
from otel_rollout.cli.show import FromOption, RunOption, refuse_options, spans_of
from otel_rollout.cli.table import errors_reported

if TYPE_CHECKING:
    from otel_rollout.look.analysis.group.siblings import Siblings


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
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the siblings of a group as a tree: where they part, and what the good branch did differently."""
    refuse_options(context, name)
    if html and json:
        raise typer.BadParameter("--html and --json exclude each other.")
    with errors_reported():
        found = _siblings(name, from_, run)
        from otel_rollout.look.analysis.group.tree import tree_of

        tree = tree_of(found)
        if html:
            from otel_rollout.look.analysis.group.page import page_of_group

            write_page(html, page_of_group(tree))
        elif json:
            from otel_rollout.look.analysis.group.document import document_of

            typer.echo(to_json(document_of(tree), indent=2))
        else:
            from otel_rollout.cli.group_output import show_group

            show_group(tree, Console(highlight=False))


def _siblings(name: str, from_: str | None, run: str | None) -> Siblings:
    """Read the group from a table, or from a spool or MLflow as ``show`` does."""
    from otel_rollout.look.analysis.group.siblings import in_spans, in_table, names_in
    from otel_rollout.look.sources.private_table import asked_as_table

    names_in(name)  # a wrong name is reported before the source is read
    address = sources.table_address(from_)
    if run is None and address is None:
        with asked_as_table(spans_of(from_)) as source:
            return in_spans(source, name)
    from otel_rollout.look.analysis.run_choice import run_of
    from otel_rollout.table.query import Engine

    with sources.as_table(from_, address) as (store, location):
        engine = Engine(store.open())
        return in_table(engine, name, run_of(engine, run) if run else None, location)
