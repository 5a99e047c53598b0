"""Show how far delivery is while a program waits for it."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import time
from collections.abc import Callable, Iterator

DELAY = 1.0
"""Seconds of waiting before anything is shown; most programs wait less."""
_UPDATE_INTERVAL = 0.2
"""Seconds between updates of the line on a terminal."""
_CLEAR_LINE = "\r\x1b[K"

Show = Callable[[int, int], None]
"""Takes the number of spans that are done, and of all."""


@contextlib.contextmanager
def progress() -> Iterator[Show]:
    """Show a line that is updated on a terminal, and elsewhere lines after 1, 2, 4, 8, … seconds.

    Written by hand: a library imported while Python exits makes it forget that Ctrl-C ended the program, and
    exit with another status.
    """
    began = time.monotonic()
    next_time = DELAY
    is_shown = False

    def show(done: int, total: int) -> None:
        nonlocal next_time, is_shown
        waited = time.monotonic() - began
        if waited < next_time:
            return
        line = (
            f"otel-rollout: delivering spans, {done} of {total}, {waited:.0f} s "
            "(Ctrl-C leaves, delivery goes on)"
        )
        if _is_on_a_terminal():
            width = shutil.get_terminal_size().columns  # a line that wraps could not be cleared
            is_shown = True  # before it is: Ctrl-C may come in between
            write(_CLEAR_LINE + line[: width - 1])
            next_time = waited + _UPDATE_INTERVAL
        else:
            write(line + "\n")
            next_time *= 2

    try:
        yield show
    finally:
        if is_shown:
            write(_CLEAR_LINE)


def write(text: str) -> None:
    """Write to standard error, if there is one and somebody reads it. Never raises."""
    with contextlib.suppress(Exception):  # None, closed, a pipe nobody reads, somebody's own stream
        sys.stderr.write(text)
        sys.stderr.flush()


def _is_on_a_terminal() -> bool:
    """Whether a line can be cleared: a wrapper, as rich has one, may print control characters as text."""
    try:
        return isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr.isatty()
    except Exception:  # noqa: BLE001 - as above
        return False
