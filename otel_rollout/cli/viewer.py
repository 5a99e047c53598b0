"""``otel-rollout show`` and ``otel-rollout compare``."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer
from rich.console import Console

from otel_rollout import configuration
from otel_rollout.base.suggest import closest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from otel_rollout.forwarder.detokenizer import Detokenizer
    from otel_rollout.viewer.conversation import Conversation
    from otel_rollout.viewer.reference import Reference
    from otel_rollout.viewer.summary import Summary

_TRAJECTORY = (
    "STEP/SAMPLE/ROLLOUT (1/7/0, validation/1/7/0), a trace id or its first digits, or a trajectory's id."
)
NAMES = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Settings of commands whose arguments are names of trajectories."""
_TODAY = (
    "Lists are by step and row, and cannot be filtered or sorted here yet: `otel-rollout show 7/` lists step "
    "7, and `otel-rollout show | grep error` what failed. MLflow and Weave filter and sort by score."
)
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="A spool, run or node directory, a file of OTLP JSON Lines, `mlflow` or mlflow:URI. "
        "\\[default: OTEL_ROLLOUT_SPOOL_DIR, or otel-rollout-<uid> in the temporary directory]",
    ),
]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", help="Write a page for a browser to this file instead; - is standard output."),
]


class Source(Protocol):
    """Where trajectories are read from."""

    place: str
    notes: tuple[str, ...]
    """What is to be said of those found last: that they are of an older run."""

    def find(self, reference: Reference | None) -> list[Summary]:
        """Those that are meant, of the newest run that has some; without reference all of a run's."""

    def spans(self, trace_id: str) -> list[ReadableSpan]:
        """All spans of a trace."""

    def decoder(self, name: str) -> Detokenizer | None:
        """What decodes with the tokenizer that a run calls ``name``; None where it is not there."""


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

    _refuse_options(context, trajectory)
    with _said_plainly():
        meant = reference.parse(trajectory) if trajectory is not None else None
        source = _source(from_)
        found = source.find(meant)
        if meant is None or _is_list(meant, found):
            if not found:
                raise reference.UnresolvedError(f"There is no trajectory in {source.place}.")
            if html:
                raise reference.UnresolvedError("A list has no page: name one trajectory of it.")
            terminal.list_trajectories(found, Console(), source.place, source.notes)
            return
        conversation = _conversation(source, meant, found)
        if html:
            _write(html, page.of_conversation(conversation))
        else:
            terminal.show(conversation, Console(highlight=False), source.place, source.notes)


def compare(
    context: typer.Context,
    one: Annotated[str, typer.Argument(help=_TRAJECTORY, metavar="A")],
    other: Annotated[
        str, typer.Argument(help="The trajectory to compare with, usually of the same group.", metavar="B")
    ],
    from_: FromOption = None,
    html: HtmlOption = None,
) -> None:
    """Show two trajectories side by side, and the turn and token at which they part."""
    from otel_rollout.viewer import comparison, page, reference, terminal

    _refuse_options(context, one, other)
    with _said_plainly():
        meant = [reference.parse(text) for text in (one, other)]
        source = _source(from_)
        pair = [_conversation(source, each, source.find(each)) for each in meant]
        compared = comparison.compare(*pair)
        if html:
            _write(html, page.of_comparison(compared))
        else:
            terminal.compare(compared, Console(highlight=False))


def _refuse_options(context: typer.Context, *names: str | None) -> None:
    """End with an error for options there are not.

    The parser leaves them to us: names may begin with a dash, as ``-/7/0`` does, where no step was said.
    """
    unknown = [text for text in (*names, *context.args) if text and text.startswith("-") and "/" not in text]
    if unknown:
        known = [option for parameter in context.command.params for option in parameter.opts]
        near = difflib.get_close_matches(unknown[0], known, 1)
        advice = f"Did you mean {near[0]}?" if near else _TODAY
        context.fail(f"There is no option {unknown[0]}. {advice}")
    if context.args:
        context.fail(f"{' '.join(context.args)}: one trajectory too many, or a name that needs quotes.")


def _source(place: str | None) -> Source:
    from otel_rollout.viewer.reference import UnresolvedError

    configured, _ = configuration.from_environment(os.environ)
    kind, _, uri = (place or "").partition(":")
    if kind == "mlflow":
        from otel_rollout.viewer.from_mlflow import InMlflow

        return InMlflow(uri or None, os.environ.get("OTEL_ROLLOUT_PROJECT") or None)
    if uri and not Path(place or "").exists() and closest(kind, ["mlflow"]):
        raise UnresolvedError(f"There is no source {kind!r}. Did you mean 'mlflow:{uri}'?")
    from otel_rollout.viewer.from_spool import Kept

    return Kept(Path(place)) if place else Kept(configured.spool_dir, is_named=False)


def _is_list(meant: Reference, found: list[Summary]) -> bool:
    """Whether a reference is that of a step or a group."""
    return bool(meant.path and found) and not any(meant.is_name_of(one) for one in found)


def _conversation(source: Source, meant: Reference, found: list[Summary]) -> Conversation:
    from otel_rollout.viewer import conversation, reference

    chosen = reference.choose(meant, found, source.place)
    spans = source.spans(chosen.trace_id)
    if not spans:
        raise reference.UnresolvedError(
            f"{meant.text} has begun; none of its spans is in {source.place} yet."
        )
    return conversation.conversation(spans, meant.span, source.decoder)


def _write(path: Path, page: str) -> None:
    from otel_rollout.viewer.reference import UnresolvedError

    if str(path) == "-":
        typer.echo(page.encode(), nl=False)
        return
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UnresolvedError(f"The page cannot be written: {error}") from error
    typer.echo(f"Written to {path}")


@contextmanager
def _said_plainly() -> Iterator[None]:
    from otel_rollout.viewer.printable import printable
    from otel_rollout.viewer.reference import UnresolvedError

    try:
        yield
    except UnresolvedError as error:
        typer.echo(printable(str(error)), err=True)
        raise typer.Exit(2) from error
