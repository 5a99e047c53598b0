"""Starts Ray's nodes for tests, once more where Ray gave up on one.

Ray waits 30 s for a node and has no setting for it. A busy machine of two cores takes longer now and then.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

RAY_GAVE_UP = "The current node timed out during startup"
_ATTEMPTS = 3

Started = TypeVar("Started")


def start_ray(start: Callable[[], Started]) -> Started:
    """Call ``start``, which starts a node of Ray's, again if Ray gave up on it."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return start()
        except Exception as error:
            if RAY_GAVE_UP not in str(error):
                raise
            _say_again()
    return start()


def run_program(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program that starts Ray, again if Ray gave up on its node.

    Args:
        command: the program and its arguments.
        options: of :func:`subprocess.run`. What the program prints is captured as text.
    """
    for _ in range(_ATTEMPTS - 1):
        ran = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        if ran.returncode == 0 or RAY_GAVE_UP not in ran.stdout + ran.stderr:
            return ran
        _say_again()
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def _say_again() -> None:
    print("Ray gave up on its node after 30 s, which is Ray's limit; it is started again", file=sys.stderr)
