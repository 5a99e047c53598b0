"""Write an HTML page where the option ``--html`` says."""

from __future__ import annotations

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
    from otel_rollout.viewer.errors import ViewerError

    if str(path) == "-":
        typer.echo(page.encode(), nl=False)
        return
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ViewerError(f"The page cannot be written: {error}") from error
    typer.echo(f"Written to {path}")
