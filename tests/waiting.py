"""Tests wait for what shall come about, with a deadline, and never for luck."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_for(condition: Callable[[], Found], seconds: float = 60, what: str = "the condition") -> Found:
    """Poll until ``condition`` gives something true, and return it.

    A file that is not there yet is a condition that is not true yet; other errors are raised.
    """
    deadline = time.monotonic() + seconds
    missing: OSError | None = None
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except FileNotFoundError as error:
            missing = error
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come about in {seconds} s") from missing
