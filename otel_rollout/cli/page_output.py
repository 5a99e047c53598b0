"""Write an HTML page where the option ``--html`` says, and report what cannot be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", help="Write an HTML page to this file instead; - is standard output."),
]


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
    """Report a file of the block that cannot be written.

    Args:
        what: the file, for the message.

    Raises:
        ViewerError: a file cannot be written.
    """
    from otel_rollout.look.errors import ViewerError

    try:
        yield
    except OSError as error:
        if error.filename is None:  # standard output, or a disk that is full
            raise
        raise ViewerError(f"The {what} cannot be written: {error}") from error
