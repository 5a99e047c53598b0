"""Keep what tests build in a folder that all checkouts of this user share.

The folder is ``~/.cache/otel-rollout-dev``, or what the variable ``ROLLOUT_DEV_CACHE`` names. A name in
it has a version or a digest of its sources. So two versions of this repository can share the folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

VARIABLE: Final = "ROLLOUT_DEV_CACHE"
DIRECTORY: Final = Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "otel-rollout-dev")
os.environ[VARIABLE] = str(DIRECTORY)  # a test has a home of its own


def cached(name: str, make: Callable[[Path], object]) -> Path:
    """Return a file or folder of the cache, made by ``make(path)`` if it is missing.

    ``make`` gets a path beside the final one. What it finishes is then renamed. Whoever wants the same thing
    at the same time waits for it.
    """
    target = DIRECTORY / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{target}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            fresh = Path(f"{target}.{os.getpid()}")
            make(fresh)
            fresh.rename(target)
    return target
