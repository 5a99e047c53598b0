"""Write what a command has found: as an HTML page, as JSON or on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import dumps as to_json
from pathlib import Path
from typing import Annotated

import typer

from otel_rollout.look.errors import ViewerError

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
    typer.echo(f"Written to {path}")


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
