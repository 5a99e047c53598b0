"""Show how far delivery is while a program waits for it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

DELAY = 1.0
"""Seconds of waiting before anything is shown; most programs wait less."""
_HINT = "Ctrl-C leaves, delivery goes on"

Show = Callable[[int, int], None]
"""Takes the number of spans that are done, and of all."""


@contextlib.contextmanager
def progress() -> Iterator[Show]:
    """Show a bar on a terminal, and elsewhere lines after 1, 2, 4, 8, … seconds."""
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        next_time = DELAY
        update: Show | None = None

        def show(done: int, total: int) -> None:
            nonlocal next_time, update
            waited = time.monotonic() - began
            if waited < next_time:
                return
            if not sys.stderr.isatty():
                next_time *= 2
                _print_line(done, total, waited)
                return
            if update is None:
                update = stack.enter_context(_bar())
            update(done, total)

        yield show


def _print_line(done: int, total: int, waited: float) -> None:
    with contextlib.suppress(OSError, ValueError):  # a pipe nobody reads, or a closed stream
        print(
            f"otel-rollout: delivering spans: {done} of {total} after {waited:.0f} s ({_HINT})",
            file=sys.stderr,
            flush=True,
        )


@contextlib.contextmanager
def _bar() -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("delivering spans"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn(f"({_HINT})"),
    )
    # Without a thread of its own to refresh it: none can be started while the interpreter exits.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("delivering")
        yield lambda done, total: bar.update(task, completed=done, total=total, refresh=True)
