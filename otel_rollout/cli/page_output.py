"""Write what a command has found: as an HTML page, as JSON or on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from json import dumps as to_json
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from otel_rollout.base.printable import printable
from otel_rollout.look.errors import ViewerError
from otel_rollout.look.fitted_table import print_sentence

HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", help="Write an HTML page to this file instead; - is standard output."),
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def answer(
    html: Path | None,
    json: bool,
    page: Callable[[], str],
    document: Callable[[], object],
    show: Callable[[], object],
) -> None:
    """Write a page and print JSON, as the options say; without either, show what was found.

    Args:
        html: file of the page.
        json: whether to print JSON.
        page: makes the page.
        document: makes the JSON document.
        show: prints on the terminal.

    Raises:
        ViewerError: the file cannot be written.
    """
    if json:
        typer.echo(to_json(document(), indent=2))
    if html is not None:
        write_page(html, page())
    if html is None and not json:
        show()


def write_page(path: Path, page: str) -> None:
    """Write a page to a file, or to standard output for ``-``.

    Raises:
        ViewerError: the file cannot be written.
    """
    if str(path) == "-":
        typer.echo(page.encode(), nl=False)
        return
    with writing("page"):
        path.write_text(page, encoding="utf-8")
    tell(f"Written to {path}")


def say(*sentences: str, stderr: bool = True) -> None:
    """Print sentences for a person, each in a line of its own, to standard error or standard output."""
    for sentence in sentences:
        print_sentence(Console(stderr=stderr, highlight=False), Text(printable(sentence)))


tell: Final = partial(say, stderr=False)
"""Prints sentences to standard output."""


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn the error of a file that the block cannot write into one line for a person.

    Args:
        what: what the file is, for the message; for example ``page``.

    Raises:
        ViewerError: a file cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:  # standard output, or a disk that is full
            raise
        raise ViewerError(f"The {what} cannot be written: {error.strerror}: {error.filename}") from error
