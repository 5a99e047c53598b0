"""Show progress while a program or command waits for delivery."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator

from otel_rollout.base.waits import waits

_CLEAR_LINE = "\r\x1b[K"

Show = Callable[[int, int], None]
"""Function of two numbers: spans done, and spans in total."""


@contextlib.contextmanager
def progress(hint: str = "") -> Iterator[Show]:
    """Update one line on a terminal; elsewhere print lines after 1, 2, 4, 8, … s.

    No library writes the line: importing one while Python exits makes Python forget that Ctrl-C ended the
    program, and exit with another status.

    Args:
        hint: advice for the person who waits, shown in brackets.
    """
    start = time.monotonic()
    next_time = waits().progress
    first: int | None = None
    is_shown = False

    def show(done: int, total: int) -> None:
        nonlocal next_time, first, is_shown
        waited = time.monotonic() - start
        first = done if first is None else first
        if waited < next_time:
            return
        line = _line(done, total, waited, (done - first) / waited, hint)
        if is_on_a_terminal():
            width = shutil.get_terminal_size().columns  # a line that wraps could not be cleared
            is_shown = True  # set first: Ctrl-C may come before the write returns
            write(_CLEAR_LINE + line[: width - 1])
            next_time = waited + waits().progress_update
        else:
            write(line + "\n")
            next_time *= 2

    try:
        yield show
    finally:
        if is_shown:
            write(_CLEAR_LINE)


@contextlib.contextmanager
def polled_progress(count: Callable[[], tuple[int, int]]) -> Iterator[None]:
    """Show progress on a terminal while the block delivers.

    Args:
        count: returns the numbers of spans done and in total; another thread calls it.
    """
    if not is_on_a_terminal():
        yield
        return
    is_over = threading.Event()
    with progress() as show:

        def poll() -> None:
            while not is_over.wait(waits().progress_count):
                show(*count())

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def _line(done: int, total: int, waited: float, rate: float, hint: str) -> str:
    speed = f"; {rate:.0f} spans/s, {(total - done) / rate:.0f} s left" if rate else ""
    brackets = f" ({hint})" if hint else ""
    return f"otel-rollout: delivering spans, {done} of {total}, {waited:.0f} s{brackets}{speed}"


def clear_line() -> None:
    """Clear the line of progress on the terminal, so that other output replaces it."""
    if is_on_a_terminal():
        write(_CLEAR_LINE)


def write(text: str) -> None:
    """Write to standard error; do nothing where it is missing, closed or broken."""
    # Standard error may be None, a closed stream, a pipe without reader, or the user's own object.
    with contextlib.suppress(Exception):
        sys.stderr.write(text)
        sys.stderr.flush()


def is_on_a_terminal() -> bool:
    """Return whether a line on standard error can be cleared.

    A stream that wraps standard error, such as rich's, may show control characters as text.
    """
    try:
        return isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr.isatty()
    except Exception:  # noqa: BLE001 - the stream may be the user's own object
        return False
