"""Implement the commands ``otel-rollout show`` and ``otel-rollout compare``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from otel_rollout.base.suggest import closest
from otel_rollout.cli import sources
from otel_rollout.cli.dumps import reading
from otel_rollout.cli.page_output import HtmlOption, write_page
from otel_rollout.cli.table import SOURCES
from otel_rollout.look.analysis.run_choice import run_of
from otel_rollout.look.conversation import comparison, page, terminal
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.summary import Summary
from otel_rollout.look.errors import ViewerError
from otel_rollout.look.sources import reference
from otel_rollout.look.sources.private_table import Source, SpanSource, asked_as_table
from otel_rollout.look.sources.reference import Reference
from otel_rollout.look.sources.table_source import TableSource
from otel_rollout.table.query import Engine

_TRAJECTORY = (
    "STEP/SAMPLE/ROLLOUT (1/7/0, validation/1/7/0), a trace id or its first digits, or a trajectory's id."
)
_FILTERING_ADVICE = (
    "`otel-rollout list` filters and sorts trajectories: `otel-rollout list --step 7 --failed --sort reward`."
)
_DUMP_OR_MLFLOW: Final = "a framework's dump (PATH or FORMAT:PATH), `mlflow` or mlflow:URI."
FromOption = Annotated[str | None, typer.Option("--from", help=SOURCES.format(_DUMP_OR_MLFLOW))]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        help="A run's id or experiment, or `latest`; of a table or spool. "
        "\\[default: the newest that has the name]",
    ),
]


@reading
def show(
    context: typer.Context,
    trajectory: Annotated[
        str | None,
        typer.Argument(
            help=f"{_TRAJECTORY} A step (1/) or group (1/7) is listed. \\[default: the newest run is]",
            show_default=False,
        ),
    ] = None,
    from_: FromOption = None,
    run: RunOption = None,
    html: HtmlOption = None,
) -> None:
    """Show one trajectory turn by turn, or list trajectories."""
    refuse_options(context, trajectory)
    with ExitStack() as until_end:
        wanted = reference.parse(trajectory) if trajectory is not None else None
        source = until_end.enter_context(opened(from_, run))
        found = source.find(wanted)
        if wanted is None or _is_list(wanted, found):
            if not found:
                raise ViewerError(f"There is no trajectory in {source.place}.")
            if html:
                raise ViewerError("A list cannot be written as a page: name one trajectory of it.")
            terminal.list_trajectories(found, Console(), source.location, source.notes)
            return
        conversation = _conversation(source, wanted, found)
        if html:
            write_page(html, page.of_conversation(conversation))
        else:
            terminal.show(conversation, Console(highlight=False), source.location, source.notes)


@reading
def compare(
    context: typer.Context,
    left: Annotated[str, typer.Argument(help=_TRAJECTORY, metavar="A")],
    right: Annotated[
        str, typer.Argument(help="The trajectory to compare with, usually of the same group.", metavar="B")
    ],
    from_: FromOption = None,
    run: RunOption = None,
    html: HtmlOption = None,
) -> None:
    """Show two trajectories side by side, and where they begin to differ."""
    refuse_options(context, left, right)
    with ExitStack() as until_end:
        wanted = [reference.parse(text) for text in (left, right)]
        source = until_end.enter_context(opened(from_, run))
        pair = [_conversation(source, each, source.find(each)) for each in wanted]
        compared = comparison.compare(*pair)
        if html:
            write_page(html, page.of_comparison(compared))
        else:
            terminal.compare(compared, Console(highlight=False))


def refuse_options(context: typer.Context, *names: str | None) -> None:
    """End the command with an error for an unknown option.

    The parser accepts unknown options, because the name of a trajectory without a step (``-/7/0``) starts
    with a dash.
    """
    unknown = [text for text in (*names, *context.args) if text and text.startswith("-") and "/" not in text]
    if unknown:
        known = [option for parameter in context.command.params for option in parameter.opts]
        near = closest(unknown[0], known)
        advice = f"Did you mean {near}?" if near else _FILTERING_ADVICE
        context.fail(f"There is no option {unknown[0]}. {advice}")
    if context.args:
        context.fail(f"{' '.join(context.args)}: one name too many, or a name that needs quotes.")


@contextmanager
def opened(from_: str | None, run: str | None = None) -> Iterator[Source]:
    """Yield the source that the options name.

    With ``run``, the source cannot be MLflow.
    """
    address = sources.table_address(from_)
    if run is None and address is None:
        with asked_as_table(spans_of(from_)) as source:
            yield source
        return
    with sources.as_table(from_, address) as (store, location):
        engine = Engine(store.open())
        if run is None:
            yield TableSource(engine, location)
        else:
            chosen = run_of(engine, run)
            yield TableSource(engine, location, chosen.condition, chosen.name)


def spans_of(from_: str | None) -> SpanSource:
    """Open the spool, file or MLflow that the option ``--from`` names."""
    scheme, _, uri = (from_ or "").partition(":")
    if from_ and scheme == "mlflow":
        return sources.mlflow_source(from_)
    if uri and not Path(from_ or "").exists() and closest(scheme, ["mlflow"]):
        raise ViewerError(f"There is no source {scheme!r}. Did you mean 'mlflow:{uri}'?")
    return sources.spool_source(from_)


def _is_list(wanted: Reference, found: list[Summary]) -> bool:
    """Return whether a reference names a step or group, and not one trajectory."""
    return bool(wanted.path and found) and not any(wanted.is_name_of(summary) for summary in found)


def _conversation(source: Source, wanted: Reference, found: list[Summary]) -> Conversation:
    chosen = reference.choose(wanted, found, source.place)
    return source.conversation(chosen.trace_id, wanted.span)
