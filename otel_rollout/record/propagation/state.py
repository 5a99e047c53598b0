"""Hold the variables of what instrument() has patched, and of Ray's workers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from otel_rollout.base.patching import Patches
from otel_rollout.base.state import PER_PROCESS, RoomState, register


@dataclass(slots=True)
class State(RoomState):
    """What is instrumented in this process."""

    instrument_lock: threading.Lock = field(default_factory=threading.Lock, metadata=PER_PROCESS)
    patches: Patches | None = None
    """The patches of instrument() in ``ray.init``, ``ray.shutdown`` and pools."""
    ray_patches: Patches | None = None
    """The patches in Ray's calls."""
    is_uninstrumented: bool = False
    """Whether uninstrument() was called last: variables alone do not instrument Ray."""
    http_patches: Patches | None = None
    """The patches of instrument() in HTTP clients."""
    flushing_pool_process: int = 0
    """Id of this pool process, once it is set to flush at exit; a forked child has another id."""
    run_of_workers: str = ""
    """Id of the run with which the Ray job's workers were started."""
    known_job: tuple[Any, bool] = (None, False)
    """The Ray job of this process's last call, and whether the job's workers remove carriers."""
    published_runs: set[str] = field(default_factory=set)
    """Ids of runs whose settings this process has put into Ray's control store, or has found there."""
    unknown_runs: set[str] = field(default_factory=set)
    """Ids of runs whose settings are not in Ray's control store."""


state = register(State())
