"""Implement the commands ``otel-rollout show`` and ``otel-rollout compare``."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from otel_rollout import settings_reader
from otel_rollout.base.suggest import closest
from otel_rollout.cli import sources
from otel_rollout.cli.page_output import HtmlOption, write_page
from otel_rollout.cli.table import errors_reported

if TYPE_CHECKING:
    from otel_rollout.viewer.conversation import Conversation
    from otel_rollout.viewer.reference import Reference
    from otel_rollout.viewer.source import Source
    from otel_rollout.viewer.summary import Summary

_TRAJECTORY = (
    "STEP/SAMPLE/ROLLOUT (1/7/0, validation/1/7/0), a trace id or its first digits, or a trajectory's id."
)
CONTEXT_SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Typer's settings for commands that take trajectory names, which may start with a dash."""
_FILTERING_ADVICE = (
    "`otel-rollout list` filters and sorts trajectories: `otel-rollout list --step 7 --failed --sort reward`."
)
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="A rollout table (directory or s3://…), a spool, run or node directory, a file of OTLP JSON "
        "Lines, `mlflow` or mlflow:URI. \\[default: OTEL_ROLLOUT_DELTA_URI, a table at ./rollouts, "
        "or the spool]",
    ),
]


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
    html: HtmlOption = None,
) -> None:
    """Show one trajectory turn by turn, or list trajectories."""
    from otel_rollout.viewer import page, reference, terminal
    from otel_rollout.viewer.errors import ViewerError

    refuse_options(context, trajectory)
    with errors_reported():
        wanted = reference.parse(trajectory) if trajectory is not None else None
        source = source_of(from_)
        found = source.find(wanted)
        if wanted is None or _is_list(wanted, found):
            if not found:
                raise ViewerError(f"There is no trajectory in {source.location}.")
            if html:
                raise ViewerError("A list cannot be written as a page: name one trajectory of it.")
            terminal.list_trajectories(found, Console(), source.location, source.notes)
            return
        conversation = _conversation(source, wanted, found)
        if html:
            write_page(html, page.of_conversation(conversation))
        else:
            terminal.show(conversation, Console(highlight=False), source.location, source.notes)


def compare(
    context: typer.Context,
    left: Annotated[str, typer.Argument(help=_TRAJECTORY, metavar="A")],
    right: Annotated[
        str, typer.Argument(help="The trajectory to compare with, usually of the same group.", metavar="B")
    ],
    from_: FromOption = None,
    html: HtmlOption = None,
) -> None:
    """Show two trajectories side by side, and where they begin to differ."""
    from otel_rollout.viewer import comparison, page, reference, terminal

    refuse_options(context, left, right)
    with errors_reported():
        wanted = [reference.parse(text) for text in (left, right)]
        source = source_of(from_)
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
        near = difflib.get_close_matches(unknown[0], known, 1)
        advice = f"Did you mean {near[0]}?" if near else _FILTERING_ADVICE
        context.fail(f"There is no option {unknown[0]}. {advice}")
    if context.args:
        context.fail(f"{' '.join(context.args)}: one name too many, or a name that needs quotes.")


def source_of(from_: str | None) -> Source:
    """Open the source that the option ``--from`` names."""
    from otel_rollout.viewer.errors import ViewerError

    if (address := sources.table_address(from_)) is not None:
        from otel_rollout.viewer.table_source import TableSource

        return TableSource(sources.store_at(address))
    configured, _ = settings_reader.from_environment(os.environ)
    scheme, _, uri = (from_ or "").partition(":")
    if scheme == "mlflow":
        from otel_rollout.viewer.mlflow_source import MlflowSource

        return MlflowSource(uri or None, os.environ.get("OTEL_ROLLOUT_PROJECT") or None)
    if uri and not Path(from_ or "").exists() and closest(scheme, ["mlflow"]):
        raise ViewerError(f"There is no source {scheme!r}. Did you mean 'mlflow:{uri}'?")
    from otel_rollout.viewer.spool_source import SpoolSource

    return SpoolSource(Path(from_)) if from_ else SpoolSource(configured.spool_dir, is_named=False)


def _is_list(wanted: Reference, found: list[Summary]) -> bool:
    """Whether a reference names a step or group, and not one trajectory."""
    return bool(wanted.path and found) and not any(wanted.is_name_of(summary) for summary in found)


def _conversation(source: Source, wanted: Reference, found: list[Summary]) -> Conversation:
    from otel_rollout.viewer import conversation, reference
    from otel_rollout.viewer.errors import ViewerError
    from otel_rollout.viewer.source import TrainingSource

    chosen = reference.choose(wanted, found, source.location)
    spans = source.spans(chosen.trace_id)
    if not spans:
        raise ViewerError(f"{wanted.text} has started, but none of its spans is in {source.location} yet.")
    shown = conversation.conversation_of(spans, wanted.span, source.decoder)
    is_passed_over = isinstance(source, TrainingSource) and source.is_passed_over(chosen.trace_id)
    return replace(shown, is_passed_over=is_passed_over)
