"""Take the times of generation and of reward functions from TRL's own profiler.

TRL enters a ``ProfilingContext`` around each reward function, and around the generation proper. A
``ContextVar`` tells to which batch a block belongs, also on TRL's event loop.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_rollout.base.errors import internal_errors
from otel_rollout.integrations.trl import batch
from otel_rollout.integrations.trl.batch import Measured
from otel_rollout.integrations.trl.patched_modules import seams


def install(module: ModuleType) -> None:
    """Wrap the end of a block that TRL's profiler times."""
    loss = "reward functions have no spans, and the times of model calls include the update of the weights"
    seams.wrap(module, "ProfilingContext.__exit__", _observing, loss)


def _observing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __exit__(self: Any, kind: Any = None, error: Any = None, stack: Any = None) -> Any:
        with internal_errors("reading the time of a block of TRL's"):
            running = batch.current()
            if running is not None and self._start_time is not None:
                end_ns, seconds = time.time_ns(), time.perf_counter() - self._start_time
                running.measured.append(Measured(self.name, (end_ns - int(seconds * 1e9), end_ns), error))
        return original(self, kind, error, stack)

    return __exit__
