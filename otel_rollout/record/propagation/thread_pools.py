"""Continue trajectories in thread pools.

Leave the parent's trajectory in forked children.

``ThreadPoolExecutor.submit`` starts work in a thread that does not have the caller's context. verl's parsers
and reward functions run there: ``loop.run_in_executor`` calls ``submit``, in asyncio's loops and in uvloop's.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from opentelemetry import context as otel_context

from otel_rollout.base.errors import internal_errors
from otel_rollout.base.patching import Patches
from otel_rollout.record.propagation.carrier import active_context
from otel_rollout.record.propagation.state import state
from otel_rollout.record.recording.identity import SUBMITTED

Submit = Callable[..., "Future[Any]"]


def install() -> None:
    """Patch ``ThreadPoolExecutor.submit``, unless it is patched already."""
    if state.thread_patches is not None:
        return
    patches = state.thread_patches = Patches()
    patches.replace(ThreadPoolExecutor, "submit", functools.partial(_with_context, patches))


def uninstall() -> None:
    """Undo :func:`install`."""
    if state.thread_patches is not None:
        state.thread_patches.undo()
        state.thread_patches = None


def _with_context(patches: Patches, original: Submit) -> Submit:
    @functools.wraps(original)
    def submit(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        context = active_context() if patches.active else None
        if context is None:
            return original(self, fn, *args, **kwargs)
        return original(self, run_in_context, context, fn, *args, **kwargs)

    return submit


def run_in_context(
    context: otel_context.Context, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call ``fn`` with ``context`` as the current OTel context."""
    # Attach only the OTel context: a copied context would hide variables that the pool's initializer set.
    token, submitted = otel_context.attach(context), SUBMITTED.set(context)
    try:
        return fn(*args, **kwargs)
    finally:
        SUBMITTED.reset(submitted)
        otel_context.detach(token)


@internal_errors("leaving the trajectory after a fork")
def _leave_trajectory() -> None:
    """Empty a forked child's OTel context, so that it leaves the parent's trajectory."""
    if state.thread_patches is not None:
        otel_context.attach(otel_context.Context())


os.register_at_fork(after_in_child=_leave_trajectory)  # at import: a handler cannot be unregistered
